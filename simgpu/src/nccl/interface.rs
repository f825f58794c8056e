//! The functions of the interface.

use std::{
    collections::BTreeSet,
    ffi::{CStr, c_char},
    sync::Mutex,
};

use super::{
    collective::{Message, Wanted},
    communicator::{self, Pending, Split},
    environment::environment,
    group::{self, Job},
    last_error, names, nccl,
    types::{
        Address, CONFIG_MAGIC, Code, Config, DataType, Function, ID_MAGIC, OPERATIONS, Refused,
        UNDEFINED, UniqueId, VERSION,
    },
};
use crate::{
    cuda::{In, Out, cuMemAlloc_v2, cuMemFree_v2},
    execute::lock,
    memory::{Kind, contents::range},
    state::World,
    timing::meeting::RANKS,
};

/// What memory for collectives is a multiple of, as the real library's is.
const GRANULARITY: usize = 2 << 20;

/// What alignment the beginning of a window must have (`NCCL_WIN_REQUIRED_ALIGNMENT`).
const WINDOW_ALIGNMENT: u64 = 4096;

/// Where memory of `ncclMemAlloc` begins.
static OWN_MEMORY: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

impl<T: Copy> Out<T> {
    /// Puts a result there, which must be wanted.
    fn give(&self, value: T, what: &str) -> Result<(), Refused> {
        self.set(value).map_err(|_| null(what))
    }
}

fn null(what: &str) -> Refused {
    Refused::new(Code::INVALID_ARGUMENT, format!("{what} argument is NULL"))
}

/// The version of the interface.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the ABI's names")]
pub(crate) extern "C" fn ncclGetVersion(version: Out<i32>) -> i32 {
    names::keep();
    version.set(VERSION).map_or(Code::INVALID_ARGUMENT.0, |()| 0)
}

/// A sentence about a code.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the ABI's names")]
pub(crate) extern "C" fn ncclGetErrorString(code: i32) -> *const c_char {
    let sentence: &CStr = match code {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        8 => c"operation timed out",
        _ => c"unknown result code",
    };
    sentence.as_ptr()
}

/// The text of the last error of this process.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the ABI's names")]
pub(crate) extern "C" fn ncclGetLastError(_communicator: u64) -> *const c_char {
    last_error()
}

/// A collective that is called with all its arguments.
macro_rules! wanted {
    ($called:literal, $function:ident, $send:expr, $receive:expr, $count:expr, $data_type:expr,
     $operation:expr, $root:expr, $communicator:expr, $stream:expr) => {
        Job::Collective(Wanted {
            called: $called,
            function: Function::$function,
            send: $send,
            receive: $receive,
            count: $count as u64,
            together: $count as u64,
            data_type: $data_type,
            operation: $operation,
            root: $root,
            communicator: $communicator,
            stream: $stream,
        })
    };
}

nccl! {
    fn ncclGetUniqueId(id: Out<UniqueId>) |world| {
        let nonce = communicator::new_nonce(world);
        id.give(UniqueId { magic: ID_MAGIC, nonce, rest: [0; 14] }, "out")
    }

    fn ncclCommInitRank(target: Out<u64>, ranks: i32, id: UniqueId, rank: i32) |world| {
        join(world, &target, (ranks, rank, id), true, "ncclCommInitRank")
    }

    fn ncclCommInitRankConfig(
        target: Out<u64>,
        ranks: i32,
        id: UniqueId,
        rank: i32,
        config: In<Config>,
    ) |world| {
        let blocking = blocking(&config)?.unwrap_or(true);
        join(world, &target, (ranks, rank, id), blocking, "ncclCommInitRankConfig")
    }

    fn ncclCommInitAll(target: Out<u64>, count: i32, devices: In<i32>) |world| {
        init_all(world, &target, count, &devices)
    }

    fn ncclCommSplit(
        parent: u64,
        color: i32,
        key: i32,
        target: Out<u64>,
        config: In<Config>,
    ) |world| {
        let blocking = blocking(&config)?;
        target.give(0, "newcomm")?;
        if color < super::types::NO_COLOR {
            let text = format!("ncclCommSplit : invalid color {color}");
            return Err(Refused::new(Code::INVALID_ARGUMENT, text));
        }
        let (found, _) = communicator::ready(world, parent)?;
        let number = {
            let mut own = lock(&found);
            own.splits += 1;
            own.splits - 1
        };
        let split = Split { color, key, number };
        let pending = Pending::Split { split, target: target.pointer(), blocking };
        group::add(world, Job::Together { handle: parent, pending })
    }

    fn ncclCommFinalize(handle: u64) |world| {
        communicator::ready(world, handle).map(|_| ())
    }

    fn ncclCommDestroy(handle: u64) |world| {
        if handle == 0 { Ok(()) } else { communicator::destroy(world, handle) }
    }

    fn ncclCommAbort(handle: u64) |world| {
        if handle == 0 { Ok(()) } else { communicator::abort(world, handle) }
    }

    fn ncclCommGetAsyncError(handle: u64, error: Out<i32>) |world| {
        let code = communicator::asynchronous(world, handle)?.map_or(0, |code| code.0);
        error.give(code, "asyncError")
    }

    fn ncclCommCount(handle: u64, count: Out<i32>) |_| {
        let found = communicator::find(handle)?;
        let ranks = lock(&found).ranks;
        count.give(ranks.cast_signed(), "count")
    }

    fn ncclCommUserRank(handle: u64, rank: Out<i32>) |_| {
        let found = communicator::find(handle)?;
        let own = lock(&found).rank;
        rank.give(own.cast_signed(), "rank")
    }

    fn ncclCommCuDevice(handle: u64, device: Out<i32>) |_| {
        let found = communicator::find(handle)?;
        let gpu = lock(&found).gpu;
        device.give(gpu.cast_signed(), "devid")
    }

    fn ncclAllReduce(
        send: u64, receive: u64, count: usize, data_type: u32, operation: u32, communicator: u64,
        stream: u64,
    ) |world| {
        group::add(world, wanted!("ncclAllReduce", AllReduce, send, receive, count, data_type,
            operation, 0, communicator, stream))
    }

    fn ncclAllGather(
        send: u64, receive: u64, count: usize, data_type: u32, communicator: u64, stream: u64,
    ) |world| {
        group::add(world, wanted!("ncclAllGather", AllGather, send, receive, count, data_type,
            0, 0, communicator, stream))
    }

    fn ncclReduceScatter(
        send: u64, receive: u64, count: usize, data_type: u32, operation: u32, communicator: u64,
        stream: u64,
    ) |world| {
        group::add(world, wanted!("ncclReduceScatter", ReduceScatter, send, receive, count,
            data_type, operation, 0, communicator, stream))
    }

    fn ncclBroadcast(
        send: u64, receive: u64, count: usize, data_type: u32, root: i32, communicator: u64,
        stream: u64,
    ) |world| {
        group::add(world, wanted!("ncclBroadcast", Broadcast, send, receive, count, data_type,
            0, root, communicator, stream))
    }

    fn ncclBcast(
        place: u64, count: usize, data_type: u32, root: i32, communicator: u64, stream: u64,
    ) |world| {
        group::add(world, wanted!("ncclBroadcast", Broadcast, place, place, count, data_type,
            0, root, communicator, stream))
    }

    fn ncclReduce(
        send: u64, receive: u64, count: usize, data_type: u32, operation: u32, root: i32,
        communicator: u64, stream: u64,
    ) |world| {
        group::add(world, wanted!("ncclReduce", Reduce, send, receive, count, data_type,
            operation, root, communicator, stream))
    }

    fn ncclAlltoAll(
        send: u64, receive: u64, count: usize, data_type: u32, communicator: u64, stream: u64,
    ) |world| {
        group::add(world, wanted!("ncclAlltoAll", AlltoAll, send, receive, count, data_type,
            0, 0, communicator, stream))
    }

    fn ncclGather(
        send: u64, receive: u64, count: usize, data_type: u32, root: i32, communicator: u64,
        stream: u64,
    ) |world| {
        group::add(world, wanted!("ncclGather", Gather, send, receive, count, data_type,
            0, root, communicator, stream))
    }

    fn ncclScatter(
        send: u64, receive: u64, count: usize, data_type: u32, root: i32, communicator: u64,
        stream: u64,
    ) |world| {
        group::add(world, wanted!("ncclScatter", Scatter, send, receive, count, data_type,
            0, root, communicator, stream))
    }

    fn ncclSend(
        place: u64, count: usize, data_type: u32, peer: i32, communicator: u64, stream: u64,
    ) |world| {
        let (called, count) = ("ncclSend", count as u64);
        let message = Message { called, sends: true, address: place, count, data_type, peer, communicator, stream };
        group::add(world, Job::Message(message))
    }

    fn ncclRecv(
        place: u64, count: usize, data_type: u32, peer: i32, communicator: u64, stream: u64,
    ) |world| {
        let (called, count) = ("ncclRecv", count as u64);
        let message = Message { called, sends: false, address: place, count, data_type, peer, communicator, stream };
        group::add(world, Job::Message(message))
    }

    fn ncclGroupStart() |_| {
        group::start();
        Ok(())
    }

    fn ncclGroupEnd() |world| {
        group::end(world)
    }

    fn ncclRedOpCreatePreMulSum(
        operation: Out<u32>,
        scalar: In<u8>,
        data_type: u32,
        residence: u32,
        handle: u64,
    ) |world| {
        let (found, _) = communicator::ready(world, handle)?;
        let bits = scalar_bits(world, &scalar, data_type, residence)?;
        let mut own = lock(&found);
        let number = OPERATIONS + own.operations_made;
        operation.give(number, "op")?;
        own.operations_made += 1;
        own.operations.insert(number, bits);
        Ok(())
    }

    fn ncclRedOpDestroy(operation: u32, handle: u64) |_| {
        let found = communicator::find(handle)?;
        let mut own = lock(&found);
        if operation < OPERATIONS {
            let text = format!("ncclRedOpDestroy : operator {operation} is a NCCL builtin");
            return Err(Refused::new(Code::INVALID_ARGUMENT, text));
        }
        own.operations.remove(&operation).map(|_| ()).ok_or_else(|| {
            let text = "ncclRedOpDestroy : operator unknown to this communicator";
            Refused::new(Code::INVALID_ARGUMENT, text)
        })
    }

    fn ncclCommRegister(handle: u64, place: u64, bytes: usize, registered: Out<u64>) |world| {
        register(world, handle, (place, bytes), &registered)
    }

    fn ncclCommDeregister(handle: u64, registered: u64) |_| {
        deregister(handle, registered)
    }

    fn ncclCommWindowRegister(
        handle: u64,
        place: u64,
        bytes: usize,
        window: Out<u64>,
        flags: i32,
    ) |world| {
        open_window(world, handle, (place, bytes), &window, flags)
    }

    fn ncclCommWindowDeregister(handle: u64, window: u64) |_| {
        deregister(handle, window)
    }

    fn ncclMemAlloc(place: Out<u64>, bytes: usize) |_| {
        if place.pointer().is_null() {
            return Err(null("ptr"));
        }
        let too_large = || Refused::new(Code::INVALID_ARGUMENT, "ncclMemAlloc : too large");
        let bytes = bytes.checked_next_multiple_of(GRANULARITY).ok_or_else(too_large)?;
        match cuMemAlloc_v2(place, bytes) {
            0 => {
                // SAFETY: the call has just written it.
                lock(&OWN_MEMORY).insert(unsafe { place.pointer().read() });
                Ok(())
            }
            code => Err(crate::cuda::Code(code).into()),
        }
    }

    fn ncclMemFree(place: Address) |_| {
        match cuMemFree_v2(place as u64) {
            0 => {
                lock(&OWN_MEMORY).remove(&(place as u64));
                Ok(())
            }
            code => Err(crate::cuda::Code(code).into()),
        }
    }
}

/// What a configuration says of blocking; one that was not initialised is refused.
fn blocking(config: &In<Config>) -> Result<Option<bool>, Refused> {
    if config.is_null() {
        return Ok(None);
    }
    let config = config.get(0)?;
    let refuse = |text: &str| Err(Refused::new(Code::INVALID_ARGUMENT, text));
    if config.magic != CONFIG_MAGIC {
        return refuse("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    }
    match config.blocking {
        UNDEFINED => Ok(None),
        0 => Ok(Some(false)),
        1 => Ok(Some(true)),
        other => refuse(&format!("Invalid config blocking attribute value {other}")),
    }
}

fn join(
    world: &World,
    target: &Out<u64>,
    (ranks, rank, id): (i32, i32, UniqueId),
    blocking: bool,
    function: &'static str,
) -> Result<(), Refused> {
    let refuse = |text: String| Err(Refused::new(Code::INVALID_ARGUMENT, text));
    target.give(0, "newcomm")?;
    if ranks < 1 || rank < 0 || rank >= ranks {
        return refuse(format!("Invalid rank requested : {rank}/{ranks}"));
    }
    if ranks as usize > RANKS {
        return refuse(format!("{ranks} ranks: a simulated machine has {RANKS} at most"));
    }
    if id.magic != ID_MAGIC || id.nonce == 0 {
        return refuse("the unique id is none of ncclGetUniqueId".to_owned());
    }
    let gpu = world.local().current(world)?;
    let (rank, ranks) = (rank.cast_unsigned(), ranks.cast_unsigned());
    let wanted = communicator::Wanted { nonce: id.nonce, rank, ranks, gpu, blocking };
    let handle = communicator::add(wanted);
    target.set_if_wanted(handle);
    let joined = group::add(world, Job::Join { handle, function });
    if let Err(Refused { code, .. }) = &joined
        && *code != Code::IN_PROGRESS
        && blocking
    {
        // Nothing is left of what could not be made.
        communicator::abort(world, handle)?;
        target.set_if_wanted(0);
    }
    joined
}

fn init_all(
    world: &World,
    target: &Out<u64>,
    count: i32,
    devices: &In<i32>,
) -> Result<(), Refused> {
    let refuse = |text: String| Err(Refused::new(Code::INVALID_ARGUMENT, text));
    if target.pointer().is_null() {
        return Err(null("comms"));
    }
    let visible = world.local().visible.clone();
    if count < 1 || count as usize > visible.len() {
        return refuse(format!("Invalid device count requested : {count}/{}", visible.len()));
    }
    let mut chosen = Vec::new();
    for at in 0..count as usize {
        let device = if devices.is_null() { at as i32 } else { devices.get(at)? };
        let gpu = usize::try_from(device).ok().and_then(|place| visible.get(place).copied());
        let Some(gpu) = gpu.filter(|gpu| !chosen.contains(gpu)) else {
            return refuse(format!("Invalid or duplicate device {device} in the list of devices"));
        };
        chosen.push(gpu);
    }
    let nonce = communicator::new_nonce(world);
    let ranks = count.cast_unsigned();
    let handles: Vec<u64> = (0..ranks)
        .zip(&chosen)
        .map(|(rank, &gpu)| {
            communicator::add(communicator::Wanted { nonce, rank, ranks, gpu, blocking: true })
        })
        .collect();
    group::start();
    let added = handles.iter().try_for_each(|&handle| {
        group::add(world, Job::Join { handle, function: "ncclCommInitAll" })
    });
    let joined = added.and(group::end(world));
    for (at, &handle) in handles.iter().enumerate() {
        if joined.is_err() {
            communicator::abort(world, handle)?;
        }
        // SAFETY: by the contract of the function there is room for so many.
        let place = unsafe { target.pointer().add(at) };
        // SAFETY: as above.
        unsafe { place.write(if joined.is_ok() { handle } else { 0 }) };
    }
    joined
}

/// The factor of an operation, which lies in host or in device memory.
fn scalar_bits(
    world: &World,
    scalar: &In<u8>,
    data_type: u32,
    residence: u32,
) -> Result<(DataType, u64), Refused> {
    let refuse = |text: String| Refused::new(Code::INVALID_ARGUMENT, text);
    let found = DataType::of(data_type);
    let found = found.ok_or_else(|| refuse(format!("invalid type {data_type}")))?;
    let size = found.bytes();
    let address = scalar.pointer() as u64;
    if scalar.is_null() || residence > 1 {
        return Err(refuse("the factor is not there, or at no known place".to_owned()));
    }
    // One in device memory is read now, although the real library reads it with the collective.
    if residence == 0 && world.local().memory.find(address, size).is_none() {
        return Err(refuse(format!("the factor {address:#x} is not in memory of a device")));
    }
    world.executor.contents().store(&range(address, size));
    let mut bits = [0; 8];
    for (at, byte) in bits.iter_mut().enumerate().take(size as usize) {
        *byte = scalar.get(at)?;
    }
    Ok((found, u64::from_ne_bytes(bits)))
}

fn register(
    world: &World,
    handle: u64,
    (place, bytes): (u64, usize),
    registered: &Out<u64>,
) -> Result<(), Refused> {
    let (found, _) = communicator::ready(world, handle)?;
    if bytes == 0 || world.local().memory.find(place, bytes as u64).is_none() {
        let text = format!("{bytes} bytes at {place:#x} are no memory that can be registered");
        return Err(Refused::new(Code::INVALID_ARGUMENT, text));
    }
    if registered.pointer().is_null() {
        return Err(null("handle"));
    }
    let added = lock(&found).registered.add((place, bytes as u64));
    registered.give(added, "handle")
}

/// Registers memory with all ranks. It must be of a kind that can be mapped anew: of `ncclMemAlloc`
/// or `cuMemMap`.
fn open_window(
    world: &World,
    handle: u64,
    (place, bytes): (u64, usize),
    window: &Out<u64>,
    flags: i32,
) -> Result<(), Refused> {
    let refuse = |text: String| Err(Refused::new(Code::INVALID_ARGUMENT, text));
    window.give(0, "win")?;
    let (found, model) = communicator::ready(world, handle)?;
    if !(0..=1).contains(&flags) {
        return refuse(format!("ncclCommWindowRegister : unknown flags {flags:#x}"));
    }
    let environment = environment();
    if !(environment.windows && environment.cumem && model.is_all_peer()) {
        return Ok(());
    }
    let local = world.local();
    let region = local.memory.find(place, bytes as u64).filter(|_| bytes > 0);
    let Some(region) = region else {
        return refuse(format!("invalid pointer {place:#x} / size {bytes}"));
    };
    let can_be_mapped = match region.kind {
        Kind::Mapped { .. } => true,
        Kind::Allocated { .. } => lock(&OWN_MEMORY).contains(&region.start),
        _ => false,
    };
    if !can_be_mapped {
        let text = "Cuda failure 'invalid argument': no allocation handle of this memory";
        return Err(Refused::new(Code::UNHANDLED_CUDA_ERROR, text));
    }
    if !(place - region.start).is_multiple_of(WINDOW_ALIGNMENT) {
        return refuse("Window address must be suitably aligned.".to_owned());
    }
    drop(local);
    let mut own = lock(&found);
    let added = own.registered.add((place, bytes as u64));
    let number = own.windows;
    own.windows += 1;
    drop(own);
    let pending = Pending::Window { number, target: window.pointer(), window: added };
    group::add(world, Job::Together { handle, pending })
}

fn deregister(handle: u64, registered: u64) -> Result<(), Refused> {
    let found = communicator::find(handle)?;
    let removed = lock(&found).registered.remove(registered);
    removed.map(|_| ()).ok_or_else(|| {
        Refused::new(Code::INVALID_ARGUMENT, "nothing is registered under this handle")
    })
}
