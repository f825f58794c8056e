//! Endpoints, and the operations under way on them.

use std::{
    cell::{Cell, UnsafeCell},
    ffi::{c_int, c_void},
    fmt, io,
    mem::MaybeUninit,
    ptr,
    rc::Rc,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    Address, Completion, Domain, Failure, Flags, Library, Memory, Posted, Region, Remote,
    SharedMemory, Slice,
    bindings::{
        FI_COMPLETION, FI_EAGAIN, FI_EAVAIL, FI_EBUSY, FI_ENABLE, FI_ETOOSMALL, FI_HMEM,
        FI_MR_ENDPOINT, FI_PROTO_SHM, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_SEND,
        fi_addr_t, fi_context2, fi_cq_data_entry, fi_msg, fi_msg_rma, fi_rma_iov, fid_av, fid_cq,
        fid_ep, fid_mr, iovec,
    },
    events::Events,
    grown::fi_cq_err_entry,
    object::Object,
    opened::{self, Call, Calls},
    option, region,
};
use crate::{
    ffi::{CallError, Cause, text_of},
    units::Bytes,
};

/// Most operations under way on an endpoint; no window of a measurement is wider.
const OPERATIONS_MAX: usize = 4096;

/// Completions that are fetched at once.
const BATCH: usize = 32;

/// Zero bytes after an address: a provider may read it as a string or as an address of another
/// kind.
const ADDRESS_MARGIN: usize = 256;

/// A target of operations, for the endpoint that inserted its address.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    endpoint: u64,
    raw: fi_addr_t,
}

/// A reliable endpoint without connections, with a queue of its own for what is done.
///
/// It is used by one thread; where the provider's progress is manual, nothing moves, for peers
/// neither, unless that thread polls.
pub struct Endpoint {
    // Closed in this order, after which no provider touches what follows.
    object: Object<fid_ep>,
    events: Option<Events>,
    queue: Object<fid_cq>,
    peers: Object<fid_av>,
    regions: Vec<Object<fid_mr>>,
    memories: Vec<Rc<Memory>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    calls: Calls,
    number: u64,
    inject_size: usize,
    promises: Promises,
    domain: Rc<Domain>,
}

/// What the provider has promised of an endpoint.
#[derive(Clone, Copy)]
struct Promises {
    must_reach_gpus_itself: bool,
    shuns_shared_memory: bool,
}

/// What is asked of an operation, whatever it moves.
#[derive(Clone, Copy)]
struct Asked {
    /// The caller's word for it.
    context: u64,
    flags: Flags,
}

/// An operation's place while it is under way.
#[repr(C)]
struct Slot {
    /// The provider's notes; what the provider knows the operation by.
    notes: UnsafeCell<fi_context2>,
    /// The caller's word for it.
    context: Cell<u64>,
}

/// Endpoints that are tried while their names are taken.
const NAMES_MAX: u32 = 8;

impl Endpoint {
    /// Opens an endpoint of `domain` and enables it. If the domain was asked for GPU memory, the
    /// interface must reach it by itself (`FI_HMEM_P2P_REQUIRED`), as far as the provider knows
    /// that wish.
    ///
    /// # Errors
    ///
    /// The provider's refusal, also because it would copy a GPU's data through host memory.
    pub fn open(domain: &Rc<Domain>) -> Result<Self, CallError> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let parts = &domain.info().parts;
        let operations = parts.tx.size.saturating_add(parts.rx.size).clamp(1, OPERATIONS_MAX);
        // Peers' writes add completions to those of this side's operations.
        let queue = opened::queue(domain, 2 * operations)?;
        let peers = opened::peers(domain)?;
        let open = || {
            let object = opened::endpoint(domain)?;
            object.bind("fi_ep_bind", &queue, FI_SEND | FI_RECV)?;
            object.bind("fi_ep_bind", &peers, 0)?;
            let events = Events::bind(domain, &object);
            let promises = Promises {
                must_reach_gpus_itself: parts.info.caps & FI_HMEM != 0
                    && option::require_peer_to_peer(domain.info().library(), &object)?,
                shuns_shared_memory: option::forbid_shared_memory(&object),
            };
            let enabled = object.control("fi_enable", FI_ENABLE.cast_signed());
            enabled.map(|_| (object, events, promises))
        };
        // The shm provider names an endpoint's file by the process and a count of its endpoints. One
        // that was killed leaves its files, and another may get its number: then the name is taken.
        let code = FI_EBUSY.cast_unsigned();
        let is_taken =
            |err: &CallError| matches!(&err.source, Cause::Library { code: of, .. } if *of == code);
        let mut opened = open();
        for _ in 1..NAMES_MAX {
            if !opened.as_ref().is_err_and(is_taken) {
                break;
            }
            opened = open();
        }
        let (object, events, promises) = opened?;
        let calls = Calls::of(&object, &queue)?;
        Ok(Self {
            object,
            events,
            queue,
            peers,
            regions: Vec::new(),
            memories: Vec::new(),
            slots: (0..operations).map(|_| Slot::new()).collect(),
            free: (0..operations).rev().collect(),
            calls,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            inject_size: parts.tx.inject_size,
            promises,
            domain: Rc::clone(domain),
        })
    }

    /// Its address, for peers.
    pub fn address(&self) -> Result<Address, CallError> {
        let getname =
            self.object.function("fi_getname", |endpoint| endpoint.cm, |ops| ops.getname)?;
        let mut address = vec![0; ADDRESS_MARGIN];
        loop {
            let mut length = address.len();
            // SAFETY: the endpoint is open; `address` is as long as `length` says, which is a live
            // local.
            let code =
                unsafe { getname(self.object.fid(), address.as_mut_ptr().cast(), &raw mut length) };
            let is_short = code == -FI_ETOOSMALL.cast_signed() && length > address.len();
            address.resize(length, 0);
            if !is_short {
                self.library().check("fi_getname", code, || self.domain.info().to_string())?;
                return Ok(Address(address));
            }
        }
    }

    /// Makes the endpoint at `address` known, so that operations can be aimed at it.
    ///
    /// # Errors
    ///
    /// This is no address of the provider's kind, or through shared memory that of an endpoint of
    /// this process or of one that has gone.
    pub fn insert(&mut self, address: &Address) -> Result<Peer, CallError> {
        let refused = |source: Cause| {
            let object = format!("an address of {} bytes", address.0.len());
            CallError::new("fi_av_insert", object, source)
        };
        let is_shm = self.domain.info().parts.endpoint.protocol == FI_PROTO_SHM;
        if let Some(reason) = address.objection_of_shm().filter(|_| is_shm) {
            return Err(refused(Cause::unsupported(reason)));
        }
        let insert = self.peers.function("fi_av_insert", |peers| peers.ops, |ops| ops.insert)?;
        let mut bytes = address.0.clone();
        bytes.resize(bytes.len() + ADDRESS_MARGIN, 0);
        let mut raw = 0;
        // SAFETY: the address vector is open; `bytes` holds one address and what a provider could
        // take for the rest of one; `raw` is a live local that the call only writes.
        let code = unsafe {
            insert(self.peers.raw(), bytes.as_ptr().cast(), 1, &raw mut raw, 0, ptr::null_mut())
        };
        match code {
            1 => {}
            0.. => return Err(refused(io::Error::from(io::ErrorKind::InvalidInput).into())),
            _ => return Err(refused(self.library().cause(code, None))),
        }
        Ok(Peer { endpoint: self.number, raw })
    }

    /// Registers `memory`, for this side's operations and for those of peers.
    ///
    /// # Errors
    ///
    /// The provider's refusal, most often for want of memory that can be pinned (`ulimit -l`),
    /// or of a way from this interface to a GPU.
    pub fn register(&mut self, memory: impl Into<SharedMemory>) -> Result<Region, CallError> {
        let memory = memory.into();
        let (object, region) = region::register(&self.domain, &self.object, self.number, memory)?;
        self.regions.push(object);
        self.memories.push(region.memory());
        Ok(region)
    }

    /// Starts to write `local` to `remote`.
    ///
    /// # Panics
    ///
    /// `local` or the peer are another endpoint's, or there is no room for all at the peer.
    #[inline]
    pub fn write(
        &mut self,
        local: Slice,
        remote: Remote,
        context: u64,
        flags: Flags,
    ) -> Result<Posted, CallError> {
        self.access(self.calls.writemsg, local, remote, Asked { context, flags })
    }

    /// Starts to read from `remote` into `local`. A read is done when the data is in `local`.
    ///
    /// # Panics
    ///
    /// As [`Endpoint::write`], for what there is at the peer.
    #[inline]
    pub fn read(
        &mut self,
        local: Slice,
        remote: Remote,
        context: u64,
        flags: Flags,
    ) -> Result<Posted, CallError> {
        self.access(self.calls.readmsg, local, remote, Asked { context, flags })
    }

    /// Starts to send `local` to `peer`, which must receive it.
    ///
    /// # Panics
    ///
    /// `local` or the peer are another endpoint's.
    #[inline]
    pub fn send(
        &mut self,
        local: Slice,
        peer: Peer,
        context: u64,
        flags: Flags,
    ) -> Result<Posted, CallError> {
        assert!(peer.endpoint == self.number, "the peer is another endpoint's");
        self.message(self.calls.sendmsg, local, peer.raw, Asked { context, flags })
    }

    /// Sends `local` to `peer`, which must receive it, together with `data`. What it takes of
    /// `local` it takes at once, and it has no completion (`fi_injectdata`).
    ///
    /// # Panics
    ///
    /// `local` or the peer are another endpoint's, `local` is a GPU's, or it is more than
    /// [`Facts::inject_size`](super::Facts::inject_size): providers do not look, and overrun their
    /// buffers.
    #[inline]
    pub fn inject(&mut self, local: Slice, peer: Peer, data: u64) -> Result<Posted, CallError> {
        self.check(local);
        assert!(peer.endpoint == self.number, "the peer is another endpoint's");
        assert!(
            self.can_inject(local),
            "{} cannot be injected: they are a GPU's, or more than {} bytes",
            local.size(),
            self.inject_size
        );
        let (call, Slice { address, length, .. }) = (self.calls.injectdata, local);
        // SAFETY: the endpoint is enabled; the local memory is the host's and kept by this
        // endpoint, and the provider copies it before the call returns; the peer was inserted here.
        match unsafe { call(self.object.raw(), address, length, data, peer.raw) } {
            0 => Ok(Posted::Over),
            code => self.refused("fi_injectdata", code),
        }
    }

    /// Whether [`inject`](Endpoint::inject) takes `local`: host memory of at most
    /// [`Facts::inject_size`](super::Facts::inject_size).
    #[inline]
    pub fn can_inject(&self, local: Slice) -> bool {
        local.is_host && local.length <= self.inject_size
    }

    /// Starts to receive one message of any peer into `local`.
    ///
    /// # Panics
    ///
    /// `local` is another endpoint's.
    #[inline]
    pub fn receive(&mut self, local: Slice, context: u64) -> Result<Posted, CallError> {
        const ANY: fi_addr_t = fi_addr_t::MAX;
        self.message(self.calls.recvmsg, local, ANY, Asked { context, flags: Flags::NONE })
    }

    /// Moves the provider on, and fetches what is done into the beginning of `completions`; how
    /// many that were, at most 32 at once. Never waits.
    ///
    /// # Errors
    ///
    /// An operation failed. Each call reports one.
    #[inline]
    pub fn poll(&mut self, completions: &mut [Completion]) -> Result<usize, Failure> {
        let mut entries = [const { MaybeUninit::<fi_cq_data_entry>::uninit() }; BATCH];
        let room = completions.len().min(BATCH);
        // SAFETY: the queue is open, and of the format of `entries`, which has that much room.
        let code =
            unsafe { (self.calls.read)(self.queue.raw(), entries.as_mut_ptr().cast(), room) };
        let Ok(count) = usize::try_from(code) else {
            if code != -FI_EAGAIN as isize {
                return Err(self.failure(code));
            }
            self.events.as_ref().map_or(Ok(()), |events| events.look(&self.domain))?;
            return Ok(0);
        };
        for (completion, entry) in completions.iter_mut().zip(&entries[..count]) {
            // SAFETY: the call has written this many entries.
            let entry = unsafe { entry.assume_init_ref() };
            let has_data = entry.flags & FI_REMOTE_CQ_DATA != 0;
            // Of a peer's write a provider should leave the context empty (fi_cq(3)); efa leaves
            // that of another operation where it makes writes of messages.
            let is_own = entry.flags & FI_REMOTE_WRITE == 0;
            *completion = Completion {
                context: if is_own { self.finish(entry.op_context) } else { None },
                data: has_data.then_some(entry.data),
                length: entry.len,
            };
        }
        Ok(count)
    }

    /// Whether the provider has promised that no copy in host memory is between its interface and
    /// a GPU. Many that never make one do not know the promise.
    pub fn must_reach_gpus_itself(&self) -> bool {
        self.promises.must_reach_gpus_itself
    }

    /// Whether the provider makes writes to remote memory of messages, as its device cannot write
    /// by itself; `None` if it does not say.
    pub fn emulates_writes(&self) -> Option<bool> {
        option::flag(&self.object, option::FI_OPT_EFA_EMULATED_WRITE)
    }

    /// The same of reads.
    pub fn emulates_reads(&self) -> Option<bool> {
        option::flag(&self.object, option::FI_OPT_EFA_EMULATED_READ)
    }

    /// Whether the provider has promised to take its interface within a host, too, and no shared
    /// memory.
    pub fn shuns_shared_memory(&self) -> bool {
        self.promises.shuns_shared_memory
    }

    /// The longest message, where it is shorter than the longest write or read.
    pub fn message_max(&self) -> Option<Bytes> {
        option::message_max(&self.object).map(Bytes::of_len)
    }

    /// Operations that can be under way; [`poll`](Endpoint::poll) leaves as many completions of peers'
    /// writes unfetched at most before a device may lose them.
    pub fn operations_max(&self) -> usize {
        self.slots.len()
    }

    /// Operations that are under way.
    pub fn operations(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn library(&self) -> &'static Library {
        self.domain.info().library()
    }

    /// Asks for a write or a read.
    #[inline]
    fn access(
        &mut self,
        call: Call<fi_msg_rma>,
        local: Slice,
        remote: Remote,
        asked: Asked,
    ) -> Result<Posted, CallError> {
        self.check(local);
        assert!(remote.peer.endpoint == self.number, "the peer is another endpoint's");
        assert!(local.length as u64 <= remote.room, "{} have no room there", local.size());
        let Some(slot) = self.start(asked.context) else { return Ok(Posted::Again) };
        let near = iovec { iov_base: local.address, iov_len: local.length };
        let far = fi_rma_iov { addr: remote.address, len: local.length, key: remote.key };
        let mut descriptor = local.descriptor;
        let message = fi_msg_rma {
            msg_iov: &raw const near,
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: remote.peer.raw,
            rma_iov: &raw const far,
            rma_iov_count: 1,
            context: self.notes(slot),
            data: asked.flags.data,
        };
        // SAFETY: the endpoint is enabled; `message` and what it points to are live locals that
        // the provider copies; the local memory is kept by this endpoint, and the slot is taken
        // until the operation completes; the peer was inserted here.
        unsafe { self.post(call, &message, asked.flags, slot) }
    }

    /// Asks for a send or a receive.
    #[inline]
    fn message(
        &mut self,
        call: Call<fi_msg>,
        local: Slice,
        peer: fi_addr_t,
        asked: Asked,
    ) -> Result<Posted, CallError> {
        self.check(local);
        let Some(slot) = self.start(asked.context) else { return Ok(Posted::Again) };
        let near = iovec { iov_base: local.address, iov_len: local.length };
        let mut descriptor = local.descriptor;
        let message = fi_msg {
            msg_iov: &raw const near,
            desc: &raw mut descriptor,
            iov_count: 1,
            addr: peer,
            context: self.notes(slot),
            data: asked.flags.data,
        };
        // SAFETY: as for a write; the peer was inserted here, or is any.
        unsafe { self.post(call, &message, asked.flags, slot) }
    }

    /// Refuses memory of another endpoint, which providers do not check.
    #[inline]
    fn check(&self, local: Slice) {
        assert!(local.endpoint == self.number, "the memory is another endpoint's");
    }

    /// Takes a slot for an operation.
    #[inline]
    fn start(&mut self, context: u64) -> Option<usize> {
        let slot = self.free.pop()?;
        self.slots[slot].context.set(context);
        Some(slot)
    }

    /// What the provider knows the operation in `slot` by.
    #[inline]
    fn notes(&self, slot: usize) -> *mut c_void {
        self.slots[slot].notes.get().cast()
    }

    /// Asks for the operation in `slot`.
    ///
    /// # Safety
    ///
    /// What `message` points to is alive, and its memory until the operation completes.
    #[inline]
    unsafe fn post<M>(
        &mut self,
        call: Call<M>,
        message: &M,
        flags: Flags,
        slot: usize,
    ) -> Result<Posted, CallError> {
        // SAFETY: the endpoint is enabled; the rest is the caller's promise.
        let code =
            unsafe { (call.function)(self.object.raw(), message, flags.bits | FI_COMPLETION) };
        if code == 0 {
            return Ok(Posted::Yes);
        }
        self.free.push(slot);
        self.refused(call.name, code)
    }

    /// The outcome of a call that did not start its operation.
    fn refused(&self, name: &'static str, code: isize) -> Result<Posted, CallError> {
        if code == -FI_EAGAIN as isize {
            return Ok(Posted::Again);
        }
        Err(self.library().error(name, short(code), self.domain.info().to_string()))
    }

    /// Frees the slot whose notes are at `notes`; returns the caller's word for its operation, or
    /// `None` for an operation that this side did not ask for.
    #[inline]
    fn finish(&mut self, notes: *mut c_void) -> Option<u64> {
        let distance = notes.addr().checked_sub(self.slots.as_ptr().addr())?;
        let slot = distance / size_of::<Slot>();
        let context = self.slots.get(slot)?.context.get();
        self.free.push(slot);
        Some(context)
    }

    /// The failure that made a poll answer `code`.
    #[cold]
    fn failure(&mut self, code: isize) -> Failure {
        let object = self.domain.info().to_string();
        if code != -(FI_EAVAIL.cast_signed() as isize) {
            let source = self.library().error("fi_cq_read", short(code), object);
            return Failure { context: None, source };
        }
        let readerr = self.queue.function("fi_cq_readerr", |queue| queue.ops, |ops| ops.readerr);
        let readerr = match readerr {
            Ok(readerr) => readerr,
            Err(source) => return Failure { context: None, source },
        };
        // SAFETY: an entry of zeros and null pointers is a valid one, without room for data.
        let mut entry: fi_cq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open; `entry` is a live local, as long as in the version that was
        // asked for, or longer.
        let code = unsafe { readerr(self.queue.raw(), &raw mut entry, 0) };
        if code < 0 {
            let source = self.library().error("fi_cq_readerr", short(code), object);
            return Failure { context: None, source };
        }
        let cause = self.library().cause(entry.err, self.provider_words(&entry));
        let source = CallError::new("an operation", object, cause);
        Failure { context: self.finish(entry.op_context), source }
    }

    /// The provider's own sentence about a failed operation.
    fn provider_words(&self, entry: &fi_cq_err_entry) -> Option<String> {
        let mut buffer = [0; 256];
        let strerror =
            self.queue.function("fi_cq_strerror", |queue| queue.ops, |ops| ops.strerror).ok()?;
        // SAFETY: the queue is open and was not read since it gave `entry`; `buffer` is as long as
        // the call is told.
        let text = unsafe {
            strerror(
                self.queue.raw(),
                entry.prov_errno,
                entry.err_data,
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        // SAFETY: the answer is null, `buffer` or the provider's own, and ends in NUL.
        unsafe { text_of(text) }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // `fi_close` of an endpoint discards what is under way; only then may its memory go
        // (fi_endpoint(3)). Regions that are tied to it would keep it from closing.
        if self.domain.info().registers(FI_MR_ENDPOINT) {
            self.regions.clear();
        }
        if !self.object.close() {
            // It may still write them.
            std::mem::forget(std::mem::take(&mut self.memories));
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("info", self.domain.info()).finish_non_exhaustive()
    }
}

impl Slot {
    fn new() -> Self {
        let notes = fi_context2 { internal: [ptr::null_mut(); 8] };
        Self { notes: UnsafeCell::new(notes), context: Cell::new(0) }
    }
}

/// A code of a call that counts in `isize`.
fn short(code: isize) -> c_int {
    c_int::try_from(code).unwrap_or(c_int::MIN)
}
