//! What an endpoint is opened from: its queue, its peers' addresses, its functions.

use std::{ffi::c_void, ptr};

use super::{
    Domain,
    bindings::{
        FI_AV_TABLE, FI_AV_UNSPEC, FI_CQ_COND_NONE, FI_CQ_FORMAT_DATA, FI_WAIT_NONE, fi_addr_t,
        fi_av_attr, fi_cq_attr, fi_msg, fi_msg_rma, fid_av, fid_cq, fid_ep,
    },
    object::Object,
};
use crate::ffi::CallError;

/// The functions of an enabled endpoint and of its queue that take part in a measurement.
pub(super) struct Calls {
    pub(super) writemsg: Call<fi_msg_rma>,
    pub(super) readmsg: Call<fi_msg_rma>,
    pub(super) sendmsg: Call<fi_msg>,
    pub(super) recvmsg: Call<fi_msg>,
    pub(super) injectdata:
        unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t) -> isize,
    pub(super) read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
}

/// A function that takes a message `M` and flags.
#[derive(Clone, Copy)]
pub(super) struct Call<M> {
    pub(super) name: &'static str,
    pub(super) function: unsafe extern "C" fn(*mut fid_ep, *const M, u64) -> isize,
}

impl Calls {
    /// Looks the functions up. An endpoint may get others until it is enabled
    /// (`rdma/fi_endpoint.h`), not later.
    pub(super) fn of(endpoint: &Object<fid_ep>, queue: &Object<fid_cq>) -> Result<Self, CallError> {
        let access = |name, function| {
            let function = endpoint.function(name, |endpoint| endpoint.rma, function)?;
            Ok::<_, CallError>(Call { name, function })
        };
        let message = |name, function| {
            let function = endpoint.function(name, |endpoint| endpoint.msg, function)?;
            Ok::<_, CallError>(Call { name, function })
        };
        Ok(Self {
            writemsg: access("fi_writemsg", |ops| ops.writemsg)?,
            readmsg: access("fi_readmsg", |ops| ops.readmsg)?,
            sendmsg: message("fi_sendmsg", |ops| ops.sendmsg)?,
            recvmsg: message("fi_recvmsg", |ops| ops.recvmsg)?,
            injectdata: endpoint.function("fi_injectdata", |ep| ep.msg, |ops| ops.injectdata)?,
            read: queue.function("fi_cq_read", |queue| queue.ops, |ops| ops.read)?,
        })
    }
}

/// A queue for `size` completions.
pub(super) fn queue(domain: &Domain, size: usize) -> Result<Object<fid_cq>, CallError> {
    let library = domain.info().library();
    let open = domain.object.function("fi_cq_open", |domain| domain.ops, |ops| ops.cq_open)?;
    let mut attr = fi_cq_attr {
        size,
        flags: 0,
        format: FI_CQ_FORMAT_DATA,
        wait_obj: FI_WAIT_NONE,
        signaling_vector: 0,
        wait_cond: FI_CQ_COND_NONE,
        wait_set: ptr::null_mut(),
    };
    let mut raw = ptr::null_mut();
    // SAFETY: the domain is open; `attr` and `raw` are live locals.
    let code = unsafe { open(domain.object.raw(), &raw mut attr, &raw mut raw, ptr::null_mut()) };
    library.check("fi_cq_open", code, || domain.info().to_string())?;
    // SAFETY: the queue has just been opened, for this owner.
    Ok(unsafe { Object::own(library, "a completion queue", raw) })
}

/// Where an endpoint keeps its peers' addresses.
pub(super) fn peers(domain: &Domain) -> Result<Object<fid_av>, CallError> {
    let library = domain.info().library();
    let open = domain.object.function("fi_av_open", |domain| domain.ops, |ops| ops.av_open)?;
    let type_ = match domain.info().parts.domain.av_type {
        FI_AV_UNSPEC => FI_AV_TABLE,
        type_ => type_,
    };
    let mut attr = fi_av_attr {
        type_,
        rx_ctx_bits: 0,
        count: 0,
        ep_per_node: 0,
        name: ptr::null(),
        map_addr: ptr::null_mut(),
        flags: 0,
    };
    let mut raw = ptr::null_mut();
    // SAFETY: the domain is open; `attr` and `raw` are live locals.
    let code = unsafe { open(domain.object.raw(), &raw mut attr, &raw mut raw, ptr::null_mut()) };
    library.check("fi_av_open", code, || domain.info().to_string())?;
    // SAFETY: the address vector has just been opened, for this owner.
    Ok(unsafe { Object::own(library, "an address vector", raw) })
}

/// An endpoint, not yet bound and enabled.
pub(super) fn endpoint(domain: &Domain) -> Result<Object<fid_ep>, CallError> {
    let library = domain.info().library();
    let open = domain.object.function("fi_endpoint", |domain| domain.ops, |ops| ops.endpoint)?;
    let mut raw = ptr::null_mut();
    // SAFETY: the domain is open, and its offer is kept with it; `raw` is a live local that the
    // call only writes.
    let code =
        unsafe { open(domain.object.raw(), domain.info().raw, &raw mut raw, ptr::null_mut()) };
    library.check("fi_endpoint", code, || domain.info().to_string())?;
    // SAFETY: the endpoint has just been opened, for this owner.
    Ok(unsafe { Object::own(library, "an endpoint", raw) })
}
