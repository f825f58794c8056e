//! What is opened: fabrics, domains, queues, lists of addresses, regions; and the functions that the
//! library exports.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr,
};

use super::{
    VERSION, bindings as fi, bytes, endpoint,
    grown::{FI_MR_DMABUF, fi_mr_attr},
    offers::{self, EFA_DIRECT, Hints},
    queues::{open_events, open_queue},
    words,
};
use crate::{
    memory::{Kind, contents::range},
    state::world,
    timing::{WRITE_COUNTERS, wire::Memory},
};

/// The classes of objects (`rdma/fabric.h`).
const FI_CLASS_FABRIC: usize = 1;
const FI_CLASS_DOMAIN: usize = 2;
pub(super) const FI_CLASS_EP: usize = 3;
pub(super) const FI_CLASS_AV: usize = 11;
const FI_CLASS_MR: usize = 12;
pub(super) const FI_CLASS_EQ: usize = 13;
pub(super) const FI_CLASS_CQ: usize = 14;

/// The longest address, and the length of one.
const ADDRESS: usize = 32;

pub(super) const fn failed(code: c_int) -> c_int {
    -code
}

/// The table that every object begins with.
pub(super) const fn ops(
    close: unsafe extern "C" fn(*mut fi::fid) -> c_int,
    bind: Option<unsafe extern "C" fn(*mut fi::fid, *mut fi::fid, u64) -> c_int>,
    control: Option<unsafe extern "C" fn(*mut fi::fid, c_int, *mut c_void) -> c_int>,
) -> fi::fi_ops {
    fi::fi_ops {
        size: size_of::<fi::fi_ops>(),
        close: Some(close),
        bind,
        control,
        ops_open: None,
        tostr: None,
        ops_set: None,
    }
}

pub(super) const fn fid(fclass: usize, context: *mut c_void, ops: &'static fi::fi_ops) -> fi::fid {
    fi::fid { fclass, context, ops: ptr::from_ref(ops).cast_mut() }
}

/// Closes an object that is nothing but a box.
pub(super) unsafe extern "C" fn close<T>(raw: *mut fi::fid) -> c_int {
    // SAFETY: the object was opened here as a box of this type, and is closed once.
    drop(unsafe { Box::from_raw(raw.cast::<T>()) });
    0
}

/// Gives a new object out.
///
/// # Safety
///
/// `to` can be written, and `T` begins with a `U`.
pub(super) unsafe fn give<T, U>(object: T, to: *mut *mut U) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { to.write(Box::into_raw(Box::new(object)).cast()) };
    0
}

// ---- the library ----

/// `fi_version(3)`
#[unsafe(no_mangle)]
pub(super) extern "C" fn fi_version() -> u32 {
    VERSION
}

/// `fi_strerror(3)`
#[unsafe(no_mangle)]
pub(super) extern "C" fn fi_strerror(code: c_int) -> *const c_char {
    words::of_error(code)
}

/// `fi_dupinfo(3)`: only an empty offer is made.
#[unsafe(no_mangle)]
pub(super) extern "C" fn fi_dupinfo(info: *const fi::fi_info) -> *mut fi::fi_info {
    if info.is_null() { offers::empty() } else { ptr::null_mut() }
}

/// `fi_freeinfo(3)`
///
/// # Safety
///
/// `info` is null or of this library, and is freed once.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fi_freeinfo(info: *mut fi::fi_info) {
    // SAFETY: the caller's promise.
    unsafe { offers::free(info) };
}

/// `fi_getinfo(3)`
///
/// # Safety
///
/// `hints` is null or a complete offer; `info` can be written.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fi_getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    hints: *const fi::fi_info,
    info: *mut *mut fi::fi_info,
) -> c_int {
    let Some(world) = world() else { return failed(fi::FI_ENODATA) };
    // SAFETY: the caller's promise.
    let hints = unsafe { Hints::read(hints) };
    let found = offers::offers(&world.own, &hints);
    // SAFETY: as above.
    unsafe { info.write(found) };
    if found.is_null() { failed(fi::FI_ENODATA) } else { 0 }
}

/// `fi_tostr(3)`
///
/// # Safety
///
/// `buffer` has `length` bytes; `value` is of the type that `kind` says.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fi_tostr_r(
    buffer: *mut c_char,
    length: usize,
    value: *const c_void,
    kind: c_uint,
) -> *mut c_char {
    let is_wide = matches!(kind, fi::FI_TYPE_CAPS | fi::FI_TYPE_MODE | fi::FI_TYPE_MSG_ORDER);
    let value = match is_wide {
        // SAFETY: values of these types have 64 bits.
        true => unsafe { value.cast::<u64>().read() },
        // SAFETY: values of the others have 32.
        false => u64::from(unsafe { value.cast::<u32>().read() }),
    };
    // SAFETY: the caller's promise.
    unsafe { crate::attach::put_text(&words::of_value(value, kind), buffer, length) };
    buffer
}

/// `fi_fabric(3)`
///
/// # Safety
///
/// `fabric` can be written.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fi_fabric(
    _attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fi::fid_fabric,
    context: *mut c_void,
) -> c_int {
    static OPS: fi::fi_ops = ops(close::<fi::fid_fabric>, None, None);
    static OWN: fi::fi_ops_fabric =
        table!(fi_ops_fabric { domain: open_domain, eq_open: open_events });
    let object = fi::fid_fabric {
        fid: fid(FI_CLASS_FABRIC, context, &OPS),
        ops: ptr::from_ref(&OWN).cast_mut(),
        api_version: VERSION,
    };
    // SAFETY: the caller's promise.
    unsafe { give(object, fabric) }
}

// ---- domains ----

/// An interface that is open on one of the fabrics.
#[repr(C)]
pub(super) struct Domain {
    raw: fi::fid_domain,
    pub nic: usize,
    pub is_direct: bool,
}

unsafe extern "C" fn open_domain(
    _fabric: *mut fi::fid_fabric,
    info: *mut fi::fi_info,
    domain: *mut *mut fi::fid_domain,
    context: *mut c_void,
) -> c_int {
    static OPS: fi::fi_ops = ops(close::<Domain>, None, None);
    static OWN: fi::fi_ops_domain = table!(fi_ops_domain {
        av_open: open_addresses,
        cq_open: open_queue,
        endpoint: endpoint::open
    });
    static REGIONS: fi::fi_ops_mr = table!(fi_ops_mr { regattr: register });
    let Some(world) = world() else { return failed(fi::FI_ENODEV) };
    // SAFETY: libfabric's users open what `fi_getinfo` has offered.
    let hints = unsafe { Hints::read(info) };
    let Some(nic) = hints.domain.and_then(|name| offers::nic_of(&world.own, &name)) else {
        return failed(fi::FI_ENODEV);
    };
    bytes::open_to_all();
    let object = Domain {
        raw: fi::fid_domain {
            fid: fid(FI_CLASS_DOMAIN, context, &OPS),
            ops: ptr::from_ref(&OWN).cast_mut(),
            mr: ptr::from_ref(&REGIONS).cast_mut(),
        },
        nic,
        is_direct: hints.fabric.as_deref() == Some(EFA_DIRECT),
    };
    // SAFETY: libfabric's users give room for a pointer.
    unsafe { give(object, domain) }
}

// ---- regions ----

/// Memory that an interface reaches.
#[repr(C)]
pub(super) struct Registered {
    raw: fi::fid_mr,
    pub start: Memory,
}

unsafe extern "C" fn register(
    _domain: *mut fi::fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fi::fid_mr,
) -> c_int {
    static OPS: fi::fi_ops = ops(close_region, None, None);
    let Some(world) = world() else { return failed(fi::FI_ENODEV) };
    // SAFETY: libfabric's users give one region, by its address or as a part of a dma-buf.
    let attr = unsafe { &*attr };
    let (start, length) = match flags & FI_MR_DMABUF {
        // SAFETY: as above.
        0 => unsafe { ((*attr.memory.mr_iov).iov_base.addr(), (*attr.memory.mr_iov).iov_len) },
        _ => {
            // SAFETY: as above.
            let part = unsafe { &*attr.memory.dmabuf };
            (part.base_addr.addr() + part.offset as usize, part.len)
        }
    };
    let (start, length) = (start as u64, length as u64);
    let mut memory = Memory { address: start, ..Memory::NONE };
    if attr.iface == fi::FI_HMEM_CUDA {
        if !world.machine.host.gpudirect {
            return failed(fi::FI_EOPNOTSUPP);
        }
        let local = world.local();
        let Some(region) = local.memory.find(start, length) else { return failed(fi::FI_EFAULT) };
        let counter = region.key.counter(WRITE_COUNTERS);
        memory = Memory { place: region.place, counter: counter as u32, ..memory };
        let file = local.memory.file(region.gpu, start);
        if let (Kind::Allocated { .. }, Some((descriptor, offset))) = (&region.kind, file) {
            memory = Memory { descriptor, beginning: start - offset, ..memory };
        }
        // From now on interfaces read and write it unseen.
        let mut contents = world.executor.contents();
        if !contents.close(range(start, length)) {
            return failed(fi::FI_ENOMEM);
        }
        contents.repeats.share(start, length, counter);
    }
    let Some(key) = world.plane().wires.register(memory, length) else {
        return failed(fi::FI_ENOMEM);
    };
    let raw =
        fi::fid_mr { fid: fid(FI_CLASS_MR, attr.context, &OPS), mem_desc: ptr::null_mut(), key };
    // SAFETY: libfabric's users give room for a pointer.
    unsafe { give(Registered { raw, start: memory }, mr) };
    // SAFETY: it has just been written. What describes the region is the object itself.
    unsafe { (**mr).mem_desc = (*mr).cast() };
    0
}

unsafe extern "C" fn close_region(raw: *mut fi::fid) -> c_int {
    // SAFETY: regions are opened here as boxes of this type, and are closed once.
    let region = unsafe { Box::from_raw(raw.cast::<Registered>()) };
    if let Some(world) = world() {
        world.plane().wires.deregister(region.raw.key);
    }
    0
}

// ---- addresses ----

/// Addresses of peers, in the order in which they came.
#[repr(C)]
pub(super) struct Addresses {
    raw: fi::fid_av,
    /// Endpoints by their places, and their numbers.
    pub peers: Vec<(u32, u64)>,
}

unsafe extern "C" fn open_addresses(
    _domain: *mut fi::fid_domain,
    _attr: *mut fi::fi_av_attr,
    av: *mut *mut fi::fid_av,
    context: *mut c_void,
) -> c_int {
    static OPS: fi::fi_ops = ops(close::<Addresses>, None, None);
    static OWN: fi::fi_ops_av = table!(fi_ops_av { insert: insert });
    let raw =
        fi::fid_av { fid: fid(FI_CLASS_AV, context, &OPS), ops: ptr::from_ref(&OWN).cast_mut() };
    // SAFETY: libfabric's users give room for a pointer.
    unsafe { give(Addresses { raw, peers: Vec::new() }, av) }
}

/// An address: a word of this library's, a place and a number.
pub(super) fn address(at: u32, number: u64) -> [u8; ADDRESS] {
    let mut bytes = [0; ADDRESS];
    bytes[..8].copy_from_slice(b"EFA-like");
    bytes[8..12].copy_from_slice(&at.to_ne_bytes());
    bytes[12..20].copy_from_slice(&number.to_ne_bytes());
    bytes
}

unsafe extern "C" fn insert(
    av: *mut fi::fid_av,
    addresses: *const c_void,
    count: usize,
    numbers: *mut fi::fi_addr_t,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: lists are opened here as this type.
    let own = unsafe { &mut *av.cast::<Addresses>() };
    for at in 0..count {
        // SAFETY: libfabric's users give so many addresses, and room for as many numbers.
        let bytes = unsafe { addresses.cast::<[u8; ADDRESS]>().add(at).read() };
        if !bytes.starts_with(b"EFA-like") {
            return at as c_int;
        }
        let place = u32::from_ne_bytes(std::array::from_fn(|byte| bytes[8 + byte]));
        let number = u64::from_ne_bytes(std::array::from_fn(|byte| bytes[12 + byte]));
        // SAFETY: as above.
        unsafe { numbers.add(at).write(own.peers.len() as u64) };
        own.peers.push((place, number));
    }
    count as c_int
}
