//! The GPUs that the driver shows, and what it says of them and of their pairs.

use std::ffi::{c_char, c_int};

use cudarc::driver::sys::{
    CUGPUDirectRDMAWritesOrdering, CUdevice_P2PAttribute_enum as PairQuestion,
    CUdevice_attribute_enum as Question, CUflushGPUDirectRDMAWritesOptions, CUresult, CUuuid,
};

use super::{Driver, calls::Answer};
use crate::{
    ffi::{CallError, Cause, text_in, uuid_text},
    units::Bytes,
};

/// A GPU, as the driver counts them in this process.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub(super) driver: &'static Driver,
    pub(super) handle: c_int,
    ordinal: u32,
}

/// Room for a name or a PCI address.
const TEXT_LENGTH: c_int = 256;

impl Device {
    pub(super) fn new(driver: &'static Driver, ordinal: u32) -> Result<Self, CallError> {
        let mut handle = 0;
        // SAFETY: `handle` is a live local that the call only writes.
        let answer = unsafe { driver.calls.cuDeviceGet(&raw mut handle, ordinal.cast_signed()) };
        driver.check(answer, || format!("GPU {ordinal}"))?;
        Ok(Self { driver, handle, ordinal })
    }

    /// Its place in the driver's list: what `CUDA_VISIBLE_DEVICES` leaves, from 0.
    pub fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// Its product name.
    pub fn name(self) -> Result<String, CallError> {
        // SAFETY: the call writes a string of at most the length given.
        self.text(|text, length| unsafe {
            self.driver.calls.cuDeviceGetName(text, length, self.handle)
        })
    }

    /// Its UUID as NVML and `nvidia-smi -L` write it: `GPU-`, or `MIG-` where it is an instance of
    /// a GPU that is cut up, and five groups of digits.
    pub fn uuid(self) -> Result<String, CallError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is a live local that the call only writes.
        let answer = unsafe { self.driver.calls.cuDeviceGetUuid_v2(&raw mut uuid, self.handle) };
        self.check(answer)?;
        let groups = uuid_text(uuid.bytes.map(|byte| byte.to_ne_bytes()[0]));
        // The driver has no other word for it than the end of the name.
        let kind = if self.name()?.contains(" MIG ") { "MIG" } else { "GPU" };
        Ok(format!("{kind}-{groups}"))
    }

    /// Its PCI address in the kernel's form, such as `0000:1b:00.0`.
    pub fn pci_bus_id(self) -> Result<String, CallError> {
        // SAFETY: the call writes a string of at most the length given.
        let text = self.text(|text, length| unsafe {
            self.driver.calls.cuDeviceGetPCIBusId(text, length, self.handle)
        });
        text.map(|text| text.to_ascii_lowercase())
    }

    /// All of its memory.
    pub fn total_memory(self) -> Result<Bytes, CallError> {
        let mut size = 0;
        // SAFETY: `size` is a live local that the call only writes.
        let answer = unsafe { self.driver.calls.cuDeviceTotalMem_v2(&raw mut size, self.handle) };
        self.check(answer)?;
        Ok(Bytes::of_len(size))
    }

    /// Its compute capability, major and minor.
    pub fn compute_capability(self) -> Result<(u32, u32), CallError> {
        Ok((
            self.ask(Question::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            self.ask(Question::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    }

    /// How many multiprocessors it has.
    pub fn multiprocessors(self) -> Result<u32, CallError> {
        self.ask(Question::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
    }

    /// How many copies its copy engines do at once.
    pub fn copy_engines(self) -> Result<u32, CallError> {
        self.ask(Question::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)
    }

    /// Whether the driver gives its memory away as dma-bufs, which other devices reach.
    ///
    /// # Errors
    ///
    /// The driver is too old to tell.
    pub fn gives_dma_bufs(self) -> Result<bool, CallError> {
        Ok(self.ask(Question::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? != 0)
    }

    /// Whether the driver shares its memory with other hosts of its NVLink domain.
    ///
    /// # Errors
    ///
    /// The driver is too old to tell.
    pub fn gives_fabric_handles(self) -> Result<bool, CallError> {
        Ok(self.ask(Question::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)? != 0)
    }

    /// Whether NVLink switches store to its memory, and load from it, together with that of other
    /// GPUs; not where the driver is too old to tell.
    pub fn has_multicast(self) -> Result<bool, CallError> {
        const UNKNOWN: u32 = CUresult::CUDA_ERROR_INVALID_VALUE as u32;
        match self.ask(Question::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) {
            Err(CallError { source: Cause::Library { code: UNKNOWN, .. }, .. }) => Ok(false),
            answer => Ok(answer? != 0),
        }
    }

    /// Whether what it does may not yet see what other devices have written to its memory, and its
    /// driver can wait for that. A driver that does not tell has no function to wait with.
    pub(super) fn needs_flush(self) -> bool {
        use CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE as NONE;
        use CUflushGPUDirectRDMAWritesOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as HOST;
        let ordering = self.ask(Question::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
        let options = self.ask(Question::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
        ordering.is_ok_and(|ordering| ordering == NONE as u32)
            && options.is_ok_and(|options| options & HOST as u32 != 0)
    }

    /// Whether its contexts may be given access to the memory of `peer`.
    pub fn can_access_peer(self, peer: Self) -> Result<bool, CallError> {
        let mut flag = 0;
        // SAFETY: `flag` is a live local that the call only writes.
        let answer = unsafe {
            self.driver.calls.cuDeviceCanAccessPeer(&raw mut flag, self.handle, peer.handle)
        };
        let pair = || format!("{self}, {peer}");
        self.driver.check(answer, pair)?;
        Ok(flag != 0)
    }

    /// Whether atomic operations on the memory of `peer` are done there.
    ///
    /// # Errors
    ///
    /// `peer` is this GPU itself, or the driver has no function that tells it.
    pub fn has_native_atomics(self, peer: Self) -> Result<bool, CallError> {
        const QUESTION: PairQuestion =
            PairQuestion::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        let mut flag = 0;
        // SAFETY: `flag` is a live local that the call only writes.
        let answer = unsafe {
            self.driver.calls.cuDeviceGetP2PAttribute(
                &raw mut flag,
                QUESTION,
                self.handle,
                peer.handle,
            )
        };
        let pair = || format!("{QUESTION:?} of {self}, {peer}");
        self.driver.check(answer, pair)?;
        Ok(flag != 0)
    }

    /// The string that `ask` writes into the room that it is given.
    fn text(self, ask: impl FnOnce(*mut c_char, c_int) -> Answer) -> Result<String, CallError> {
        let mut text = [0_u8; TEXT_LENGTH as usize];
        self.check(ask(text.as_mut_ptr().cast(), TEXT_LENGTH))?;
        Ok(text_in(&text))
    }

    fn ask(self, question: Question) -> Result<u32, CallError> {
        let mut value = 0;
        // SAFETY: `value` is a live local that the call only writes.
        let answer = unsafe {
            self.driver.calls.cuDeviceGetAttribute(&raw mut value, question, self.handle)
        };
        let object = || format!("{question:?} of {self}");
        self.driver.check(answer, object)?;
        Ok(value.unsigned_abs())
    }

    fn check(self, answer: Answer) -> Result<(), CallError> {
        self.driver.check(answer, || self.to_string())
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GPU {}", self.ordinal)
    }
}
