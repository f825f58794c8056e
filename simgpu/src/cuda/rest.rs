//! What a driver does only in a context that is at rest: it waits until all has been executed that
//! is queued there. Behind a kernel that spins, such a call returns when the kernel has ended.

use super::{Code, queue::synchronize_all};
use crate::state::World;

/// Functions that wait at every call. Where drivers differ, this one is the one that waits.
const WAITING: [&str; 21] = [
    "cuCtxEnablePeerAccess",
    "cuGraphInstantiateWithFlags",
    "cuGraphUpload",
    "cuIpcCloseMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemAllocHost_v2",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFreeHost",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
];

/// Whether the function waits at every call.
pub(super) fn waits(name: &str) -> bool {
    WAITING.contains(&name)
}

/// Waits until the current context, if there is one, is at rest.
pub(super) fn current_context(world: &World) {
    let gpu = world.local().current(world);
    if let Ok(gpu) = gpu {
        synchronize_all(world, Some(gpu));
    }
}

/// What a driver brings into a context when it is first used there: its own kernels, whatever the
/// loading mode, those of modules, and graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum First {
    /// A memset of elements of so many bytes.
    Memset(u64),
    /// A copy. Small ones, and odd ones, whose addresses or length are no multiples of 16 bytes,
    /// are done in other ways.
    Copy { is_small: bool, is_odd: bool },
    /// A wait for a word.
    WaitValue,
    /// A write of a word.
    WriteValue,
    /// A kernel of a module, by the function's handle.
    Function(u64),
    /// A launch of any graph.
    GraphLaunch,
    /// A launch of this graph, by its handle.
    Graph(u64),
}

/// Copies below this size are small ones.
const SMALL_COPY: u64 = 64 << 10;

impl First {
    /// A copy between these addresses.
    pub(super) fn copy(target: u64, source: u64, bytes: u64) -> Self {
        let is_odd = !(target | source | bytes).is_multiple_of(16);
        Self::Copy { is_small: bytes < SMALL_COPY, is_odd }
    }
}

/// Waits until the context of `stream` is at rest, if nothing of this kind was used there before.
pub(super) fn at_first(world: &World, stream: u64, first: First) -> Result<(), Code> {
    let mut local = world.local();
    let gpu = match stream {
        0 | 1 => local.current(world)?,
        handle => local.streams.get(handle).ok_or(Code::INVALID_HANDLE)?.gpu,
    };
    if local.context(gpu).used.insert(first) {
        drop(local);
        synchronize_all(world, Some(gpu));
    }
    Ok(())
}
