//! Endpoints, and the operations that are started on them.

use std::{
    collections::HashMap,
    ffi::{c_int, c_void},
    ptr,
};

use super::{
    bindings as fi,
    device::{Ends, MESSAGE_MAX, RDMA_MAX, emulates, way},
    objects::{
        Addresses, Domain, FI_CLASS_AV, FI_CLASS_CQ, FI_CLASS_EP, FI_CLASS_EQ, Registered, address,
        failed, fid, give, ops,
    },
    progress::{self, Seen},
    queues::{Events, Queue},
};
use crate::{
    machine::{FailingNic, NicFault},
    state::{World, world},
    timing::{
        Plane, monotonic_ns,
        wire::{Kind, Memory, Note, Order, Wires},
    },
};

/// Options (`rdma/fi_endpoint.h`, `rdma/fi_ext.h`).
const FI_OPT_SHARED_MEMORY_PERMITTED: c_int = 11;
const FI_OPT_MAX_MSG_SIZE: c_int = 12;
const FI_OPT_MAX_RMA_SIZE: c_int = 14;
const FI_OPT_EFA_EMULATED_READ: c_int = -(0xefa << 16) + 1;
const FI_OPT_EFA_EMULATED_WRITE: c_int = -(0xefa << 16) + 2;

/// An endpoint.
#[repr(C)]
struct Endpoint {
    raw: fi::fid_ep,
    nic: usize,
    is_direct: bool,
    /// Its place among those of the machine, once it is enabled.
    at: Option<u32>,
    queue: *mut Queue,
    addresses: *mut Addresses,
    events: *mut Events,
    /// Operations that were asked for with `FI_MORE`: the device does not know of them yet.
    unrung: Vec<Order>,
    /// Copies of data that its owner may change at once, by their addresses.
    injected: HashMap<u64, Box<[u8]>>,
}

pub(super) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    _info: *mut fi::fi_info,
    endpoint: *mut *mut fi::fid_ep,
    context: *mut c_void,
) -> c_int {
    static OPS: fi::fi_ops = ops(close, Some(bind), Some(control));
    static OPTIONS: fi::fi_ops_ep = table!(fi_ops_ep { getopt: get_option, setopt: set_option });
    static NAMES: fi::fi_ops_cm = table!(fi_ops_cm { getname: name });
    static MESSAGES: fi::fi_ops_msg =
        table!(fi_ops_msg { recvmsg: receive, sendmsg: send, injectdata: inject });
    static ACCESS: fi::fi_ops_rma = table!(fi_ops_rma { readmsg: read, writemsg: write });
    // SAFETY: domains are opened here as this type.
    let domain = unsafe { &*domain.cast::<Domain>() };
    let object = Endpoint {
        raw: fi::fid_ep {
            fid: fid(FI_CLASS_EP, context, &OPS),
            ops: ptr::from_ref(&OPTIONS).cast_mut(),
            cm: ptr::from_ref(&NAMES).cast_mut(),
            msg: ptr::from_ref(&MESSAGES).cast_mut(),
            rma: ptr::from_ref(&ACCESS).cast_mut(),
            tagged: ptr::null_mut(),
            atomic: ptr::null_mut(),
            collective: ptr::null_mut(),
        },
        nic: domain.nic,
        is_direct: domain.is_direct,
        at: None,
        queue: ptr::null_mut(),
        addresses: ptr::null_mut(),
        events: ptr::null_mut(),
        unrung: Vec::new(),
        injected: HashMap::new(),
    };
    // SAFETY: libfabric's users give room for a pointer.
    unsafe { give(object, endpoint) }
}

/// The endpoint behind a pointer.
///
/// # Safety
///
/// It was opened by [`open`], and one thread at a time uses it.
unsafe fn own<'a, T>(raw: *mut T) -> &'a mut Endpoint {
    // SAFETY: the caller's promise.
    unsafe { &mut *raw.cast::<Endpoint>() }
}

unsafe extern "C" fn close(raw: *mut fi::fid) -> c_int {
    // SAFETY: endpoints are opened here as boxes of this type, and are closed once.
    let endpoint = unsafe { Box::from_raw(raw.cast::<Endpoint>()) };
    if let (Some(world), Some(at)) = (world(), endpoint.at) {
        world.plane().wires.close(at);
    }
    0
}

unsafe extern "C" fn bind(raw: *mut fi::fid, other: *mut fi::fid, _flags: u64) -> c_int {
    // SAFETY: see `own`.
    let endpoint = unsafe { own(raw) };
    // SAFETY: every object begins with this.
    match unsafe { (*other).fclass } {
        FI_CLASS_CQ => endpoint.queue = other.cast(),
        FI_CLASS_AV => endpoint.addresses = other.cast(),
        FI_CLASS_EQ => endpoint.events = other.cast(),
        _ => return failed(fi::FI_EINVAL),
    }
    0
}

unsafe extern "C" fn control(raw: *mut fi::fid, command: c_int, _argument: *mut c_void) -> c_int {
    // SAFETY: see `own`.
    let endpoint = unsafe { own(raw) };
    let Some(world) = world() else { return failed(fi::FI_ENODEV) };
    if command.cast_unsigned() != fi::FI_ENABLE {
        return failed(fi::FI_ENOSYS);
    }
    // SAFETY: what was bound stays open as long as the endpoint.
    let Some(queue) = (unsafe { endpoint.queue.as_mut() }) else {
        return -fi::FI_ENOCQ.cast_signed();
    };
    if endpoint.addresses.is_null() {
        return -fi::FI_ENOAV.cast_signed();
    }
    let pid = std::process::id();
    let user = (world.place, progress::own_thread());
    let wires = &mut world.plane().wires;
    let Some(at) = wires.open(user, pid, endpoint.nic as u32, queue.size) else {
        return failed(fi::FI_ENOMEM);
    };
    // It is not stopped, but has just begun.
    wires.endpoints[at as usize].polled_ns = monotonic_ns();
    (endpoint.at, queue.endpoint) = (Some(at), Some(at));
    queue.ring = Some(ring_all);
    queue.owner = ptr::from_mut(endpoint).cast();
    0
}

unsafe extern "C" fn name(raw: *mut fi::fid, place: *mut c_void, length: *mut usize) -> c_int {
    // SAFETY: see `own`.
    let endpoint = unsafe { own(raw) };
    let (Some(world), Some(at)) = (world(), endpoint.at) else {
        return -fi::FI_EOPBADSTATE.cast_signed();
    };
    let own = address(at, world.plane().wires.endpoints[at as usize].number);
    // SAFETY: libfabric's users say how much room they give.
    let room = unsafe { length.replace(own.len()) };
    if room < own.len() {
        return -fi::FI_ETOOSMALL.cast_signed();
    }
    // SAFETY: as above.
    unsafe { place.cast::<[u8; 32]>().write(own) };
    0
}

unsafe extern "C" fn get_option(
    raw: fi::fid_t,
    _level: c_int,
    option: c_int,
    place: *mut c_void,
    length: *mut usize,
) -> c_int {
    // SAFETY: see `own`.
    let endpoint = unsafe { own(raw) };
    let Some(world) = world() else { return failed(fi::FI_ENODEV) };
    let emulates = |kind| u64::from(!endpoint.is_direct && emulates(&world.machine, kind));
    let (value, size) = match option {
        FI_OPT_EFA_EMULATED_READ => (emulates(Kind::Read), 1),
        FI_OPT_EFA_EMULATED_WRITE => (emulates(Kind::Write), 1),
        FI_OPT_MAX_MSG_SIZE if endpoint.is_direct => (MESSAGE_MAX, 8),
        FI_OPT_MAX_RMA_SIZE if endpoint.is_direct => (RDMA_MAX, 8),
        FI_OPT_MAX_MSG_SIZE | FI_OPT_MAX_RMA_SIZE => (u64::MAX, 8),
        _ => return failed(fi::FI_ENOPROTOOPT),
    };
    // SAFETY: libfabric's users say how much room they give.
    if unsafe { length.replace(size) } < size {
        return -fi::FI_ETOOSMALL.cast_signed();
    }
    // SAFETY: as above.
    unsafe { ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), place.cast(), size) };
    0
}

unsafe extern "C" fn set_option(
    raw: fi::fid_t,
    _level: c_int,
    option: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: see `own`.
    let endpoint = unsafe { own(raw) };
    let Some(world) = world() else { return failed(fi::FI_ENODEV) };
    if endpoint.at.is_some() {
        return failed(fi::FI_EINVAL);
    }
    match option.cast_unsigned() {
        fi::FI_OPT_FI_HMEM_P2P if length == size_of::<c_int>() => {
            // SAFETY: libfabric's users give a value of the length that they say.
            let wanted = unsafe { value.cast::<c_int>().read() }.cast_unsigned();
            let is_able = world.machine.host.gpudirect;
            match wanted == fi::FI_HMEM_P2P_REQUIRED && !is_able {
                true => failed(fi::FI_EOPNOTSUPP),
                false => 0,
            }
        }
        _ if option == FI_OPT_SHARED_MEMORY_PERMITTED && length == 1 => 0,
        _ => failed(fi::FI_ENOPROTOOPT),
    }
}

// ---- operations ----

/// The memory of an operation on this side.
struct Near {
    memory: Memory,
    bytes: u64,
}

impl Near {
    /// # Safety
    ///
    /// `part` is one part of memory, with its descriptor if it has one.
    unsafe fn read(part: *const fi::iovec, descriptor: *mut *mut c_void) -> Self {
        // SAFETY: the caller's promise.
        let part = unsafe { part.read() };
        // SAFETY: as above.
        let of = unsafe { descriptor.as_ref().and_then(|of| of.cast::<Registered>().as_ref()) };
        let start = of.map_or(Memory::NONE, |of| of.start);
        let memory = Memory { address: part.iov_base.addr() as u64, ..start };
        Self { memory, bytes: part.iov_len as u64 }
    }
}

impl Endpoint {
    /// Starts an operation, or keeps it until the next one rings.
    fn start(&mut self, order: Order, flags: u64) -> isize {
        let Some(world) = world() else { return -(fi::FI_ENODEV as isize) };
        if !world.plane().wires.accept(order.from, world.machine.efa.queue_entries) {
            self.ring(world);
            return -(fi::FI_EAGAIN as isize);
        }
        self.unrung.push(order);
        if flags & fi::FI_MORE == 0 {
            self.ring(world);
        }
        0
    }

    /// The next poll is to look, though nothing may be new but what this side has done.
    fn look_anew(&mut self) {
        // SAFETY: what was bound stays open as long as the endpoint.
        if let Some(queue) = unsafe { self.queue.as_mut() } {
            queue.seen = Seen::default();
        }
    }

    /// Gives the device what it does not know of yet.
    fn ring(&mut self, world: &World) {
        self.look_anew();
        let mut plane = world.plane();
        let Plane { wires, free_ps, .. } = &mut *plane;
        let now_ps = world.host_ps();
        for order in self.unrung.drain(..) {
            let far_nic = wires.endpoints[order.to as usize].nic as usize;
            let fault = fault(world, wires, [self.nic, far_nic]);
            let order = Order { fault, ..order };
            if fault == Some(NicFault::Event) {
                // SAFETY: what was bound stays open as long as the endpoint.
                match unsafe { self.events.as_mut() } {
                    Some(events) => events.has_error = true,
                    // As the provider does without a queue (efa_base_ep_write_eq_error).
                    None => std::process::abort(),
                }
            }
            let places = [order.near.place, order.far.place];
            let ends = Ends { nics: [self.nic, far_nic], places };
            let way = way(&world.machine, order.kind, ends, self.is_direct);
            wires.start(order, way, now_ps, free_ps);
        }
    }

    fn order(&self, kind: Kind, peer: u64, near: &Near) -> Option<Order> {
        // SAFETY: what was bound stays open as long as the endpoint.
        let addresses = unsafe { self.addresses.as_ref() }?;
        let (to, to_number) = *addresses.peers.get(usize::try_from(peer).ok()?)?;
        Some(Order {
            kind,
            from: self.at?,
            to,
            to_number,
            bytes: near.bytes,
            is_of_device: false,
            near: near.memory,
            far: Memory::NONE,
            data: 0,
            has_data: false,
            is_told: true,
            is_injected: false,
            fault: None,
            context: 0,
        })
    }

    fn access(&mut self, kind: Kind, message: &fi::fi_msg_rma, flags: u64) -> isize {
        let Some(world) = world() else { return -(fi::FI_ENODEV as isize) };
        // SAFETY: libfabric's users give one part of memory on either side.
        let near = unsafe { Near::read(message.msg_iov, message.desc) };
        // SAFETY: as above.
        let far = unsafe { message.rma_iov.read() };
        if self.is_direct && near.bytes > RDMA_MAX {
            return -(fi::FI_EMSGSIZE as isize);
        }
        let Some(far) = world.plane().wires.reach(far.key, far.addr, near.bytes) else {
            return -(fi::FI_EINVAL as isize);
        };
        let Some(order) = self.order(kind, message.addr, &near) else {
            return -(fi::FI_EINVAL as isize);
        };
        let order = Order {
            is_of_device: !emulates(&world.machine, kind),
            far,
            data: message.data,
            has_data: flags & fi::FI_REMOTE_CQ_DATA != 0,
            is_told: flags & fi::FI_COMPLETION != 0,
            context: message.context.expose_provenance() as u64,
            ..order
        };
        self.start(order, flags)
    }

    fn message(&mut self, message: &fi::fi_msg, flags: u64) -> isize {
        // SAFETY: libfabric's users give one part of memory.
        let near = unsafe { Near::read(message.msg_iov, message.desc) };
        if self.is_direct && near.bytes > MESSAGE_MAX {
            return -(fi::FI_EMSGSIZE as isize);
        }
        let Some(order) = self.order(Kind::Message, message.addr, &near) else {
            return -(fi::FI_EINVAL as isize);
        };
        let order = Order {
            is_of_device: self.is_direct,
            data: message.data,
            has_data: flags & fi::FI_REMOTE_CQ_DATA != 0,
            is_told: flags & fi::FI_COMPLETION != 0,
            context: message.context.expose_provenance() as u64,
            ..order
        };
        self.start(order, flags)
    }
}

/// How the next operation between these interfaces fails, if it does.
fn fault(world: &World, wires: &mut Wires, [near, far]: [usize; 2]) -> Option<NicFault> {
    let nics = &mut wires.nics;
    let started = [near, far].map(|nic| nics[nic].started);
    nics[near].started += 1;
    let faults = world.machine.faults.nics.iter();
    let hits = |fault: &&FailingNic| {
        let is_of = |nic: usize| fault.nic.is_none_or(|of| of as usize == nic);
        let is_own = started[0] == fault.after || fault.always && started[0] > fault.after;
        let is_cut_off = fault.what == NicFault::Unreachable && fault.always;
        is_of(near) && is_own || is_cut_off && is_of(far) && started[1] > fault.after
    };
    faults.into_iter().find(hits).map(|fault| fault.what)
}

/// What a queue calls before it is read: a device that was told of nothing does nothing.
unsafe fn ring_all(world: &World, owner: *mut c_void) {
    // SAFETY: the endpoint is open as long as its queue is read.
    let endpoint = unsafe { own(owner) };
    if !endpoint.unrung.is_empty() {
        endpoint.ring(world);
    }
    if let Some(at) = endpoint.at.filter(|_| !endpoint.injected.is_empty()) {
        let mut plane = world.plane();
        while let Some(address) = plane.wires.take_spent(at) {
            endpoint.injected.remove(&address);
        }
    }
}

unsafe extern "C" fn write(
    ep: *mut fi::fid_ep,
    message: *const fi::fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: see `own`; libfabric's users give a message.
    let (endpoint, message) = unsafe { (own(ep), &*message) };
    endpoint.access(Kind::Write, message, flags)
}

unsafe extern "C" fn read(
    ep: *mut fi::fid_ep,
    message: *const fi::fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: as above.
    let (endpoint, message) = unsafe { (own(ep), &*message) };
    endpoint.access(Kind::Read, message, flags)
}

unsafe extern "C" fn send(ep: *mut fi::fid_ep, message: *const fi::fi_msg, flags: u64) -> isize {
    // SAFETY: as above.
    let (endpoint, message) = unsafe { (own(ep), &*message) };
    endpoint.message(message, flags)
}

unsafe extern "C" fn inject(
    ep: *mut fi::fid_ep,
    data: *const c_void,
    length: usize,
    word: u64,
    peer: fi::fi_addr_t,
) -> isize {
    // SAFETY: see `own`; libfabric's users give so many bytes.
    let (endpoint, bytes) =
        unsafe { (own(ep), std::slice::from_raw_parts(data.cast::<u8>(), length)) };
    let kept: Box<[u8]> = bytes.into();
    let address = kept.as_ptr().expose_provenance() as u64;
    let near = Near { memory: Memory { address, ..Memory::NONE }, bytes: length as u64 };
    let Some(order) = endpoint.order(Kind::Message, peer, &near) else {
        return -(fi::FI_EINVAL as isize);
    };
    let is_injected = length > 0;
    let order = Order {
        data: word,
        has_data: true,
        is_told: false,
        is_injected,
        context: address,
        ..order
    };
    let code = endpoint.start(order, 0);
    if code == 0 && is_injected {
        endpoint.injected.insert(address, kept);
    }
    code
}

unsafe extern "C" fn receive(
    ep: *mut fi::fid_ep,
    message: *const fi::fi_msg,
    _flags: u64,
) -> isize {
    // SAFETY: see `own`; libfabric's users give a message.
    let (endpoint, message) = unsafe { (own(ep), &*message) };
    let (Some(world), Some(at)) = (world(), endpoint.at) else { return -(fi::FI_ENODEV as isize) };
    // SAFETY: libfabric's users give one part of memory.
    let near = unsafe { Near::read(message.msg_iov, message.desc) };
    let context = message.context.expose_provenance() as u64;
    let receive = Note::receive(context, near.memory, near.bytes);
    endpoint.look_anew();
    let now_ps = world.host_ps();
    let limit = world.machine.efa.queue_entries;
    match world.plane().wires.receive(at, receive, limit, now_ps) {
        true => 0,
        false => -(fi::FI_EAGAIN as isize),
    }
}
