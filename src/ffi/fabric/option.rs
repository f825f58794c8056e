//! Options of an endpoint.

use std::{ffi::c_int, ptr};

use super::{
    Library,
    bindings::{
        FI_ENOPROTOOPT, FI_ENOSYS, FI_HMEM_P2P_REQUIRED, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P,
        fid_ep,
    },
    object::Object,
};
use crate::ffi::CallError;

/// The first of the options that only the provider `efa` has: `rdma/fi_ext.h`.
const FI_OPT_EFA_RNR_RETRY: c_int = -(0xefa << 16);

/// Whether reads are made of messages, as on devices without RDMA: 1.18, `rdma/fi_ext.h`.
pub(super) const FI_OPT_EFA_EMULATED_READ: c_int = FI_OPT_EFA_RNR_RETRY + 1;

/// The same of writes.
pub(super) const FI_OPT_EFA_EMULATED_WRITE: c_int = FI_OPT_EFA_RNR_RETRY + 2;

/// Tells an endpoint that is not enabled yet that its interface must reach GPUs by itself, rather
/// than through copies in host memory; `false` if the provider does not know the option.
pub(super) fn require_peer_to_peer(
    library: &Library,
    endpoint: &Object<fid_ep>,
) -> Result<bool, CallError> {
    let setopt = endpoint.function("fi_setopt", |endpoint| endpoint.ops, |ops| ops.setopt);
    let Ok(setopt) = setopt else { return Ok(false) };
    let value = FI_HMEM_P2P_REQUIRED.cast_signed();
    // SAFETY: the endpoint is open; the option's value is an `int`, a live local that the call
    // only reads.
    let code = unsafe {
        setopt(
            endpoint.fid(),
            FI_OPT_ENDPOINT.cast_signed(),
            FI_OPT_FI_HMEM_P2P.cast_signed(),
            (&raw const value).cast(),
            size_of_val(&value),
        )
    };
    if code == -FI_ENOPROTOOPT || code == -FI_ENOSYS {
        return Ok(false);
    }
    let object = || "FI_OPT_FI_HMEM_P2P of an endpoint".to_owned();
    library.check("fi_setopt", code, object).map(|()| true)
}

/// What the endpoint answers to an option that is true or false; `None` if the provider does not
/// know it.
pub(super) fn flag(endpoint: &Object<fid_ep>, option: c_int) -> Option<bool> {
    let getopt = endpoint.function("fi_getopt", |endpoint| endpoint.ops, |ops| ops.getopt).ok()?;
    // Room for more than the C `bool` that it is.
    let mut value = [0_u8; 8];
    let mut length = 1;
    // SAFETY: the endpoint is open; `value` has more room than `length` says, and both are live
    // locals.
    let code = unsafe {
        getopt(
            endpoint.fid(),
            FI_OPT_ENDPOINT.cast_signed(),
            option,
            ptr::from_mut(&mut value).cast(),
            &raw mut length,
        )
    };
    (code == 0).then_some(value[0] != 0)
}
