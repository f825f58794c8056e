//! What an endpoint is opened from: its queue, its peers' addresses, its functions.

use std::{ffi::c_void, ptr};

use super::{
    Domain,
    bindings::{
        FI_AV_TABLE, FI_AV_UNSPEC, FI_CQ_FORMAT_DATA, FI_ENOSYS, FI_WAIT_NONE, fi_addr_t,
        fi_av_attr, fi_cq_attr, fi_msg, fi_msg_rma, fid_av, fid_cq, fid_ep,
    },
    object::{Object, function},
};
use crate::ffi::CallError;

/// The functions of an enabled endpoint and of its queue that take part in a measurement.
pub(super) struct Calls {
    pub(super) writemsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize,
    pub(super) readmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize,
    pub(super) sendmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
    pub(super) injectdata:
        unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, fi_addr_t) -> isize,
    pub(super) recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
    pub(super) read: unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize,
}

impl Calls {
    /// Looks the functions up; `None` if the provider lacks one. An endpoint may get others until
    /// it is enabled (`rdma/fi_endpoint.h`), not later.
    pub(super) fn of(endpoint: &Object<fid_ep>, queue: &Object<fid_cq>) -> Option<Self> {
        let endpoint = endpoint.raw();
        Some(Self {
            // SAFETY: the endpoint is open.
            writemsg: unsafe { function(endpoint, |ep| ep.rma, |ops| ops.writemsg) }?,
            // SAFETY: as above.
            readmsg: unsafe { function(endpoint, |ep| ep.rma, |ops| ops.readmsg) }?,
            // SAFETY: as above.
            sendmsg: unsafe { function(endpoint, |ep| ep.msg, |ops| ops.sendmsg) }?,
            // SAFETY: as above.
            injectdata: unsafe { function(endpoint, |ep| ep.msg, |ops| ops.injectdata) }?,
            // SAFETY: as above.
            recvmsg: unsafe { function(endpoint, |ep| ep.msg, |ops| ops.recvmsg) }?,
            // SAFETY: the queue is open.
            read: unsafe { function(queue.raw(), |queue| queue.ops, |ops| ops.read) }?,
        })
    }
}

/// A queue for `size` completions.
pub(super) fn queue(domain: &Domain, size: usize) -> Result<Object<fid_cq>, CallError> {
    let library = domain.info().library();
    // SAFETY: the domain is open.
    let open = unsafe { function(domain.object.raw(), |domain| domain.ops, |ops| ops.cq_open) };
    let mut attr = fi_cq_attr {
        size,
        flags: 0,
        format: FI_CQ_FORMAT_DATA,
        wait_obj: FI_WAIT_NONE,
        signaling_vector: 0,
        wait_cond: 0,
        wait_set: ptr::null_mut(),
    };
    let mut raw = ptr::null_mut();
    let code = open.map_or(-FI_ENOSYS, |open| {
        // SAFETY: the domain is open; `attr` and `raw` are live locals.
        unsafe { open(domain.object.raw(), &raw mut attr, &raw mut raw, ptr::null_mut()) }
    });
    library.check("fi_cq_open", code, || domain.info().to_string())?;
    // SAFETY: the queue has just been opened, for this owner.
    Ok(unsafe { Object::own(library, "a completion queue", raw) })
}

/// Where an endpoint keeps its peers' addresses.
pub(super) fn peers(domain: &Domain) -> Result<Object<fid_av>, CallError> {
    let library = domain.info().library();
    // SAFETY: the domain is open.
    let open = unsafe { function(domain.object.raw(), |domain| domain.ops, |ops| ops.av_open) };
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
    let code = open.map_or(-FI_ENOSYS, |open| {
        // SAFETY: the domain is open; `attr` and `raw` are live locals.
        unsafe { open(domain.object.raw(), &raw mut attr, &raw mut raw, ptr::null_mut()) }
    });
    library.check("fi_av_open", code, || domain.info().to_string())?;
    // SAFETY: the address vector has just been opened, for this owner.
    Ok(unsafe { Object::own(library, "an address vector", raw) })
}

/// An endpoint, not yet bound and enabled.
pub(super) fn endpoint(domain: &Domain) -> Result<Object<fid_ep>, CallError> {
    let library = domain.info().library();
    // SAFETY: the domain is open.
    let open = unsafe { function(domain.object.raw(), |domain| domain.ops, |ops| ops.endpoint) };
    let mut raw = ptr::null_mut();
    let code = open.map_or(-FI_ENOSYS, |open| {
        // SAFETY: the domain is open, and its offer is kept with it; `raw` is a live local that
        // the call only writes.
        unsafe { open(domain.object.raw(), domain.info().raw, &raw mut raw, ptr::null_mut()) }
    });
    library.check("fi_endpoint", code, || domain.info().to_string())?;
    // SAFETY: the endpoint has just been opened, for this owner.
    Ok(unsafe { Object::own(library, "an endpoint", raw) })
}
