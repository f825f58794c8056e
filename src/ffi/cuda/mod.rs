//! The GPUs, through NVIDIA's driver, or the simulated one that stands in for it.
//!
//! Owns the driver's functions and a safe type for each of its handles. The driver is loaded at
//! run time; a machine without one is no error. No return code is a Rust enum.
//!
//! # Why safe code cannot touch memory that is gone
//!
//! The driver works on memory after a call has returned, so a borrow that ends with the call
//! proves nothing. Three rules do:
//!
//! * What is queued names memory by [`Slice`], which borrows from its owner and lies inside it: at
//!   the moment of queueing the memory is there, to the last byte.
//! * An owner gives memory back only after it has seen every stream of this process idle, of all
//!   GPUs. A stream leaves that list only once it is idle. If one stays busy too long, the memory
//!   is kept for the rest of the process, with a warning.
//! * Host memory that GPUs write is shown as a Rust slice only by [`HostMemory::bytes`], which
//!   waits in the same way and borrows the owner exclusively; without waiting there are only atomic
//!   words, and [`shm::Segment`](super::shm::Segment)'s copies, whose protocol is the caller's.

mod calls;
mod context;
mod device;
mod graph;
mod kernel;
mod memory;
mod multicast;
mod sharing;
mod stream;

use std::{
    ffi::c_char,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, Weak},
};

use cudarc::driver::sys;

use super::{
    CallError, Cause,
    library::{self, Absent, Missing},
    simulation, text_of, watchdog,
};
use calls::{Answer, Calls};

pub use super::process::Descriptor;
pub use calls::CALLS;
pub use context::Context;
pub use device::Device;
pub(in crate::ffi) use graph::{Capture, Graph};
pub use kernel::{Chase, Hold, Kernels, Reduced};
pub use memory::{Buffer, HostMemory, Mapped, Memory, Pinned, Registered, Slice};
pub use multicast::{Multicast, MulticastHandle, Sharing};
pub use sharing::{FabricHandle, IpcHandle, SharedBuffer};
pub use stream::{Event, Stream};

/// The driver by the name under which every driver installs it. `libcuda.so` is for linkers, and
/// may be a toolkit's stub.
const LIBRARY: &str = "libcuda.so.1";

/// There as long as the part of the driver that belongs to the kernel is loaded.
const KERNELS_PART: &str = "/proc/driver/nvidia/version";

/// What a driver may be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Without which nothing can be measured; a driver that lacks it is refused.
    Basics,
    /// Words that streams wait for and write: [`Stream::wait_value`].
    StreamValues,
    /// Capturing what is queued, to launch it as a whole.
    Graphs,
    /// Sharing memory by [`IpcHandle`].
    Ipc,
    /// Sharing memory by [`Descriptor`].
    Descriptors,
    /// Memory of several GPUs behind one address: [`Multicast`].
    Multicast,
    /// Telling of native atomics: [`Device::has_native_atomics`].
    NativeAtomics,
    /// Waiting for what other devices have written: [`Context::flush_rdma_writes`].
    RdmaFlush,
    /// Memory for the kernel's other drivers: [`Buffer::dma_buf`].
    DmaBufs,
}

/// NVIDIA's driver, loaded and initialised.
#[derive(Debug)]
pub struct Driver {
    calls: Calls,
    /// The newest CUDA that it supports: 1000 times the major version and 10 times the minor.
    pub version: u32,
    /// The file that was loaded.
    pub library: PathBuf,
    /// Whether the machine behind it is a simulated one.
    pub is_simulated: bool,
    contexts: Mutex<Vec<Weak<context::Inner>>>,
}

/// The driver of this machine, loaded by the first who asks.
pub fn driver() -> Result<&'static Driver, Absent> {
    static DRIVER: OnceLock<Result<Driver, Absent>> = OnceLock::new();
    DRIVER.get_or_init(Driver::load).as_ref().map_err(Clone::clone)
}

impl Driver {
    fn load() -> Result<Self, Absent> {
        let place = simulation::library().unwrap_or(Path::new(LIBRARY));
        let (_, loaded) = library::load_first([place]).map_err(|reason| {
            Absent::new(format!("{reason}: this needs an NVIDIA GPU and its driver"))
        })?;
        let is_simulated = library::is_simulated(&loaded);
        if is_simulated && simulation::library().is_none() {
            let reason = "the driver that was found is the simulated one, which was not asked \
                          for: take its folder off the library path";
            return Err(Absent::new(reason));
        }
        let calls = Calls::load(&loaded);
        if let Some(missing) = calls.missing(Feature::Basics) {
            return Err(Absent::new(missing.to_string()));
        }
        let library = calls.library();
        let mut driver =
            Self { calls, version: 0, library, is_simulated, contexts: Mutex::default() };
        if let Err(err) = watchdog::watch_calls() {
            crate::stderr::say(&format!("warning: nobody watches over the driver's calls: {err}"));
        }
        driver.initialise().map_err(|err| {
            let remedy = remedy(&err.source, is_simulated || Path::new(KERNELS_PART).exists());
            Absent::refused(err.to_string() + remedy, err.code())
        })?;
        Ok(driver)
    }

    fn initialise(&mut self) -> Result<(), CallError> {
        // SAFETY: the call takes one integer, which must be 0.
        let answer = unsafe { self.calls.cuInit(0) };
        self.check(answer, || self.library.display().to_string())?;
        let mut version = 0;
        // SAFETY: `version` is a live local that the call only writes.
        let answer = unsafe { self.calls.cuDriverGetVersion(&raw mut version) };
        self.check(answer, String::new)?;
        self.version = version.unsigned_abs();
        Ok(())
    }

    /// What is missing for `feature`, if anything is.
    pub fn lacks(&self, feature: Feature) -> Option<Missing> {
        self.calls.missing(feature)
    }

    /// The GPUs that this process may use, in the order of their ordinals.
    pub fn devices(&'static self) -> Result<Vec<Device>, CallError> {
        let mut count = 0;
        // SAFETY: `count` is a live local that the call only writes.
        let answer = unsafe { self.calls.cuDeviceGetCount(&raw mut count) };
        self.check(answer, String::new)?;
        (0..count.unsigned_abs()).map(|ordinal| Device::new(self, ordinal)).collect()
    }

    /// Turns an answer into an error that names the call, the object, the code, the driver's name
    /// for it and its sentence.
    #[inline]
    fn check(&self, answer: Answer, object: impl FnOnce() -> String) -> Result<(), CallError> {
        if answer.is(sys::CUresult::CUDA_SUCCESS) {
            return Ok(());
        }
        Err(self.error(&answer, object))
    }

    #[cold]
    fn error(&self, answer: &Answer, object: impl FnOnce() -> String) -> CallError {
        let code = match answer.code() {
            Ok(code) => code,
            Err(missing) => return missing.into(),
        };
        // SAFETY: the call writes its one answer.
        let name = describe(|text| unsafe { self.calls.cuGetErrorName(code, text) });
        // SAFETY: as above.
        let text = describe(|text| unsafe { self.calls.cuGetErrorString(code, text) });
        CallError::new(answer.call(), object(), Cause::Library { code, name, text })
    }
}

/// What `ask` says of a code; a code that the driver does not know has no name.
fn describe(ask: impl FnOnce(*mut *const c_char) -> Answer) -> String {
    let mut text = std::ptr::null();
    if !ask(&raw mut text).is(sys::CUresult::CUDA_SUCCESS) {
        return "unknown".to_owned();
    }
    // SAFETY: the driver answered with a string of its own that ends in NUL and never moves.
    unsafe { text_of(text) }.unwrap_or_else(|| "unknown".to_owned())
}

/// What a person can do about a driver that does not initialise, whose part in the kernel is there
/// or not; CUDA's error codes.
fn remedy(cause: &Cause, is_in_kernel: bool) -> &'static str {
    let Cause::Library { code, .. } = cause else { return "" };
    match code {
        34 => "; this is a toolkit's stub: take its folder off the library path",
        100 if !is_in_kernel => {
            "; the kernel has no NVIDIA driver loaded, which `modprobe nvidia` may change"
        }
        100 => {
            "; `nvidia-smi -L` lists what this system or container has, CUDA_VISIBLE_DEVICES may \
             hide it, and a container must be given GPUs (`docker run --gpus all`)"
        }
        304 | 999 => "; `nvidia-modprobe -u -c 0` loads what may be missing",
        802 => {
            "; GPUs behind an NVSwitch need Fabric Manager: `systemctl status nvidia-fabricmanager`"
        }
        803 => "; the driver was updated while its old part is loaded: restart the machine",
        804 => "; take the CUDA compatibility package's folder off the library path",
        _ => "",
    }
}
