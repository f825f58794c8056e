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

/// Whether transfers within a host may go through shared memory: a `bool`; 1.21,
/// `rdma/fi_endpoint.h`.
const FI_OPT_SHARED_MEMORY_PERMITTED: c_int = 11;

/// The longest message: a `size_t`; 1.22, `rdma/fi_endpoint.h`.
const FI_OPT_MAX_MSG_SIZE: c_int = 12;

/// Tells an endpoint that is not enabled yet that its interface must reach GPUs by itself, rather
/// than through copies in host memory; `false` if the provider does not know the option.
pub(super) fn require_peer_to_peer(
    library: &Library,
    endpoint: &Object<fid_ep>,
) -> Result<bool, CallError> {
    let value = FI_HMEM_P2P_REQUIRED.cast_signed().to_ne_bytes();
    match set(endpoint, FI_OPT_FI_HMEM_P2P.cast_signed(), &value) {
        None => Ok(false),
        Some(code) => {
            let object = || "FI_OPT_FI_HMEM_P2P of an endpoint".to_owned();
            library.check("fi_setopt", code, object).map(|()| true)
        }
    }
}

/// Forbids an endpoint that is not enabled yet to take shared memory within a host rather than its
/// interface; `false` if the provider does not know the option or does not obey.
pub(super) fn forbid_shared_memory(endpoint: &Object<fid_ep>) -> bool {
    set(endpoint, FI_OPT_SHARED_MEMORY_PERMITTED, &[0]) == Some(0)
}

/// What the provider answers to the bytes of an option; `None` if it does not know the option.
fn set(endpoint: &Object<fid_ep>, option: c_int, value: &[u8]) -> Option<c_int> {
    let setopt = endpoint.function("fi_setopt", |endpoint| endpoint.ops, |ops| ops.setopt).ok()?;
    let level = FI_OPT_ENDPOINT.cast_signed();
    // SAFETY: the endpoint is open; `value` is as long as the call is told, which only reads it.
    let code = unsafe { setopt(endpoint.fid(), level, option, value.as_ptr().cast(), value.len()) };
    (code != -FI_ENOPROTOOPT && code != -FI_ENOSYS).then_some(code)
}

/// The longest message that the endpoint takes; `None` if it does not say.
pub(super) fn message_max(endpoint: &Object<fid_ep>) -> Option<usize> {
    get(endpoint, FI_OPT_MAX_MSG_SIZE, size_of::<usize>()).map(usize::from_ne_bytes)
}

/// What the endpoint answers to an option that is true or false; `None` if the provider does not
/// know it.
pub(super) fn flag(endpoint: &Object<fid_ep>, option: c_int) -> Option<bool> {
    get(endpoint, option, size_of::<bool>()).map(|value| value[0] != 0)
}

/// The value of an option of `length` bytes; `None` if the provider does not know it.
fn get(
    endpoint: &Object<fid_ep>,
    option: c_int,
    mut length: usize,
) -> Option<[u8; size_of::<usize>()]> {
    let getopt = endpoint.function("fi_getopt", |endpoint| endpoint.ops, |ops| ops.getopt).ok()?;
    let mut value = [0; size_of::<usize>()];
    // SAFETY: the endpoint is open; `value` has as much room as `length` says or more, and both are
    // live locals.
    let code = unsafe {
        getopt(
            endpoint.fid(),
            FI_OPT_ENDPOINT.cast_signed(),
            option,
            ptr::from_mut(&mut value).cast(),
            &raw mut length,
        )
    };
    (code == 0).then_some(value)
}
