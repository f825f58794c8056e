//! Queues of completions and of events.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    bindings as fi,
    grown::fi_cq_err_entry,
    objects::{FI_CLASS_CQ, FI_CLASS_EQ, close, failed, fid, give, ops},
    progress::{self, Seen},
};
use crate::{
    state::{World, world},
    timing::wire::{Kind, Note, NoteKind},
};

/// The device's codes of operations that fail (`EFA_IO_COMP_STATUSES` in libfabric's `efa_errno.h`).
const INTERNAL: c_int = 2;
const UNRESPONSIVE: c_int = 13;

/// A completion queue, of one endpoint.
#[repr(C)]
pub(super) struct Queue {
    raw: fi::fid_cq,
    pub size: u32,
    /// Its endpoint, once it is enabled.
    pub endpoint: Option<u32>,
    /// Tells the device of what it does not know yet, and of which endpoint.
    pub ring: Option<unsafe fn(&World, *mut c_void)>,
    pub owner: *mut c_void,
    /// A completion of a failure that was not asked for yet.
    failure: Option<Note>,
    /// What the last poll has seen, if it was in vain.
    pub seen: Seen,
}

pub(super) unsafe extern "C" fn open_queue(
    _domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cq_attr,
    cq: *mut *mut fi::fid_cq,
    context: *mut c_void,
) -> c_int {
    static OPS: fi::fi_ops = ops(close::<Queue>, None, None);
    static OWN: fi::fi_ops_cq =
        table!(fi_ops_cq { read: read, readerr: read_failure, strerror: failure_words });
    // SAFETY: libfabric's users say what they want.
    let attr = unsafe { &*attr };
    if attr.format != fi::FI_CQ_FORMAT_DATA || attr.wait_obj != fi::FI_WAIT_NONE {
        return failed(fi::FI_ENOSYS);
    }
    let size = u32::try_from(attr.size).unwrap_or(u32::MAX);
    let raw =
        fi::fid_cq { fid: fid(FI_CLASS_CQ, context, &OPS), ops: ptr::from_ref(&OWN).cast_mut() };
    let object = Queue {
        raw,
        size,
        endpoint: None,
        ring: None,
        owner: ptr::null_mut(),
        failure: None,
        seen: Seen::default(),
    };
    // SAFETY: libfabric's users give room for a pointer.
    unsafe { give(object, cq) }
}

unsafe extern "C" fn read(cq: *mut fi::fid_cq, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: queues are opened here as this type, and one thread at a time uses them.
    let queue = unsafe { &mut *cq.cast::<Queue>() };
    let (Some(world), Some(at)) = (world(), queue.endpoint) else { return again() };
    if queue.failure.is_some() {
        return -(fi::FI_EAVAIL as isize);
    }
    if let Some(ring) = queue.ring {
        // SAFETY: an endpoint is open as long as its queue is read.
        unsafe { ring(world, queue.owner) };
    }
    let mut fetched = 0;
    while fetched < count {
        let found = match fetched {
            0 => progress::poll(world, at, &mut queue.seen),
            _ => world.plane().wires.fetch(at),
        };
        let Some(note) = found else { break };
        if matches!(note.kind, NoteKind::Failed | NoteKind::Unreachable) {
            queue.failure = Some(note);
            break;
        }
        // SAFETY: libfabric's users give room for so many entries.
        unsafe { buffer.cast::<fi::fi_cq_data_entry>().add(fetched).write(entry(world, &note)) };
        fetched += 1;
    }
    match (fetched, &queue.failure) {
        (0, Some(_)) => -(fi::FI_EAVAIL as isize),
        (0, None) => again(),
        _ => fetched as isize,
    }
}

const fn again() -> isize {
    -(fi::FI_EAGAIN as isize)
}

/// A completion as libfabric's users read it.
fn entry(world: &World, note: &Note) -> fi::fi_cq_data_entry {
    /// The context of the last operation that was over.
    static STALE: AtomicU64 = AtomicU64::new(0);
    let own = match note.kind {
        NoteKind::Over(Kind::Write) => fi::FI_RMA | fi::FI_WRITE | fi::FI_COMPLETION,
        NoteKind::Over(Kind::Read) => fi::FI_RMA | fi::FI_READ | fi::FI_COMPLETION,
        NoteKind::Over(Kind::Message) => fi::FI_MSG | fi::FI_SEND | fi::FI_COMPLETION,
        NoteKind::Received => fi::FI_MSG | fi::FI_RECV | fi::FI_COMPLETION,
        NoteKind::Written => fi::FI_RMA | fi::FI_REMOTE_WRITE,
        // It is told by `read_failure`.
        NoteKind::Failed | NoteKind::Unreachable => 0,
    };
    // Where libfabric makes writes of messages, what it has left of an operation before is there.
    let is_stale = note.kind == NoteKind::Written && !world.machine.efa.writes;
    let context = match note.kind {
        NoteKind::Written if is_stale => STALE.load(Ordering::Relaxed),
        NoteKind::Written => 0,
        _ => {
            STALE.store(note.context, Ordering::Relaxed);
            note.context
        }
    };
    fi::fi_cq_data_entry {
        op_context: ptr::with_exposed_provenance_mut(context as usize),
        flags: own | if note.has_data { fi::FI_REMOTE_CQ_DATA } else { 0 },
        len: note.bytes as usize,
        buf: ptr::null_mut(),
        data: note.data,
    }
}

unsafe extern "C" fn read_failure(
    cq: *mut fi::fid_cq,
    entry: *mut fi_cq_err_entry,
    _flags: u64,
) -> isize {
    // SAFETY: queues are opened here as this type, and one thread at a time uses them.
    let queue = unsafe { &mut *cq.cast::<Queue>() };
    let Some(note) = queue.failure.take() else { return again() };
    // SAFETY: libfabric's users give room for an entry.
    let entry = unsafe { &mut *entry };
    entry.op_context = ptr::with_exposed_provenance_mut(note.context as usize);
    // The device's codes, and what libfabric makes of them (efa_data_path_direct_internal.h).
    (entry.err, entry.prov_errno) = match note.kind {
        NoteKind::Unreachable => (fi::FI_EHOSTUNREACH, UNRESPONSIVE),
        _ => (fi::FI_EINVAL, INTERNAL),
    };
    1
}

unsafe extern "C" fn failure_words(
    _cq: *mut fi::fid_cq,
    code: c_int,
    _data: *const c_void,
    _buffer: *mut c_char,
    _length: usize,
) -> *const c_char {
    let words = match code {
        UNRESPONSIVE => c"the other end no longer answers (simulated)",
        _ => c"the queue pair has failed (simulated)",
    };
    words.as_ptr()
}

/// An event queue.
#[repr(C)]
pub(super) struct Events {
    raw: fi::fid_eq,
    /// Whether there is an error that nobody has asked for.
    pub has_error: bool,
}

pub(super) unsafe extern "C" fn open_events(
    _fabric: *mut fi::fid_fabric,
    _attr: *mut fi::fi_eq_attr,
    eq: *mut *mut fi::fid_eq,
    context: *mut c_void,
) -> c_int {
    static OPS: fi::fi_ops = ops(close::<Events>, None, None);
    static OWN: fi::fi_ops_eq =
        table!(fi_ops_eq { read: read_events, readerr: read_error, strerror: error_words });
    let raw =
        fi::fid_eq { fid: fid(FI_CLASS_EQ, context, &OPS), ops: ptr::from_ref(&OWN).cast_mut() };
    // SAFETY: libfabric's users give room for a pointer.
    unsafe { give(Events { raw, has_error: false }, eq) }
}

unsafe extern "C" fn read_events(
    eq: *mut fi::fid_eq,
    _event: *mut u32,
    _buffer: *mut c_void,
    _length: usize,
    _flags: u64,
) -> isize {
    // SAFETY: queues are opened here as this type, and one thread at a time uses them.
    match unsafe { (*eq.cast::<Events>()).has_error } {
        true => -(fi::FI_EAVAIL as isize),
        false => again(),
    }
}

unsafe extern "C" fn read_error(
    eq: *mut fi::fid_eq,
    entry: *mut fi::fi_eq_err_entry,
    _flags: u64,
) -> isize {
    // SAFETY: as above.
    let events = unsafe { &mut *eq.cast::<Events>() };
    if !std::mem::take(&mut events.has_error) {
        return again();
    }
    // SAFETY: libfabric's users give room for an entry.
    let entry = unsafe { &mut *entry };
    (entry.err, entry.prov_errno) = (fi::FI_EINVAL, INTERNAL);
    1
}

unsafe extern "C" fn error_words(
    _eq: *mut fi::fid_eq,
    _code: c_int,
    _data: *const c_void,
    _buffer: *mut c_char,
    _length: usize,
) -> *const c_char {
    c"an internal error (simulated)".as_ptr()
}
