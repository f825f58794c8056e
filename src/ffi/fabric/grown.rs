//! What libfabric's headers have added since the bindings' version, in the form of 1.20.
//!
//! A provider reads and writes only as much of these as the version asks for that was given to
//! `fi_getinfo`; what is longer than that does no harm.

#![allow(non_camel_case_types, reason = "libfabric's own names")]

use std::ffi::{c_int, c_void};

use super::bindings::{fi_addr_t, fi_hmem_iface, iovec};

/// The first version with dma-buf: 1.20, `rdma/fabric.h`.
pub(super) const DMABUF_VERSION: u32 = super::version(1, 20);

/// The region is a part of a dma-buf: 1.20, `rdma/fabric.h`.
pub(super) const FI_MR_DMABUF: u64 = 1 << 40;

/// A part of a dma-buf: 1.20, `rdma/fi_domain.h`.
#[repr(C)]
pub(super) struct fi_mr_dmabuf {
    pub(super) fd: c_int,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) base_addr: *mut c_void,
}

/// Where a region's memory is: 1.20, `rdma/fi_domain.h`.
#[repr(C)]
pub(super) union fi_mr_memory {
    pub(super) mr_iov: *const iovec,
    pub(super) dmabuf: *const fi_mr_dmabuf,
}

/// A region to register: 1.20, `rdma/fi_domain.h`.
#[repr(C)]
pub(super) struct fi_mr_attr {
    pub(super) memory: fi_mr_memory,
    pub(super) iov_count: usize,
    pub(super) access: u64,
    pub(super) offset: u64,
    pub(super) requested_key: u64,
    pub(super) context: *mut c_void,
    pub(super) auth_key_size: usize,
    pub(super) auth_key: *mut u8,
    pub(super) iface: fi_hmem_iface,
    /// A union in C; all its members begin here, and a GPU's ordinal is one of them.
    pub(super) device: u64,
    pub(super) hmem_data: *mut c_void,
}

/// An operation that failed: 1.20, `rdma/fi_eq.h`.
#[repr(C)]
pub(super) struct fi_cq_err_entry {
    pub(super) op_context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: *mut c_void,
    pub(super) err_data_size: usize,
    pub(super) src_addr: fi_addr_t,
}
