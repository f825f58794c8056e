//! The GPUs that the driver shows, and what it says of them and of their pairs.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{
    CUdevice_P2PAttribute_enum as PairQuestion, CUdevice_attribute_enum as Question, CUuuid,
};

use super::Driver;
use crate::{ffi::CallError, units::Bytes};

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
        let code = unsafe { driver.calls.cuDeviceGet(&raw mut handle, ordinal.cast_signed()) };
        driver.check("cuDeviceGet", code, || format!("GPU {ordinal}"))?;
        Ok(Self { driver, handle, ordinal })
    }

    /// Its place in the driver's list: what `CUDA_VISIBLE_DEVICES` leaves, from 0.
    pub fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// Its product name.
    pub fn name(self) -> Result<String, CallError> {
        self.text("cuDeviceGetName", self.driver.calls.cuDeviceGetName)
    }

    /// Its UUID as NVML and `nvidia-smi -L` write it: `GPU-`, or `MIG-` where it is an instance of
    /// a GPU that is cut up, and five groups of digits.
    pub fn uuid(self) -> Result<String, CallError> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is a live local that the call only writes.
        let code = unsafe { self.driver.calls.cuDeviceGetUuid_v2(&raw mut uuid, self.handle) };
        self.check("cuDeviceGetUuid", code)?;
        let digits: String = uuid.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let groups = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20]];
        // The driver has no other word for it than the end of the name.
        let kind = if self.name()?.contains(" MIG ") { "MIG" } else { "GPU" };
        Ok(format!("{kind}-{}-{}", groups.join("-"), &digits[20..]))
    }

    /// Its PCI address in the kernel's form, such as `0000:1b:00.0`.
    pub fn pci_bus_id(self) -> Result<String, CallError> {
        self.text("cuDeviceGetPCIBusId", self.driver.calls.cuDeviceGetPCIBusId)
            .map(|text| text.to_ascii_lowercase())
    }

    /// All of its memory.
    pub fn total_memory(self) -> Result<Bytes, CallError> {
        let mut size = 0;
        // SAFETY: `size` is a live local that the call only writes.
        let code = unsafe { self.driver.calls.cuDeviceTotalMem_v2(&raw mut size, self.handle) };
        self.check("cuDeviceTotalMem", code)?;
        Ok(Bytes::of_len(size))
    }

    /// Its compute capability, major and minor.
    pub fn compute_capability(self) -> Result<(u32, u32), CallError> {
        let major = self.ask(Question::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.ask(Question::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major.unsigned_abs(), minor.unsigned_abs()))
    }

    /// How many multiprocessors it has.
    pub fn multiprocessors(self) -> Result<u32, CallError> {
        let count = self.ask(Question::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(count.unsigned_abs())
    }

    /// How many copies its copy engines do at once.
    pub fn copy_engines(self) -> Result<u32, CallError> {
        let count = self.ask(Question::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?;
        Ok(count.unsigned_abs())
    }

    /// Whether the driver gives its memory away as dma-bufs, which other devices reach.
    ///
    /// # Errors
    ///
    /// The driver is too old to tell.
    pub fn gives_dma_bufs(self) -> Result<bool, CallError> {
        Ok(self.ask(Question::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)? != 0)
    }

    /// Whether its contexts may be given access to the memory of `peer`.
    pub fn can_access_peer(self, peer: Self) -> Result<bool, CallError> {
        let mut answer = 0;
        // SAFETY: `answer` is a live local that the call only writes.
        let code = unsafe {
            self.driver.calls.cuDeviceCanAccessPeer(&raw mut answer, self.handle, peer.handle)
        };
        let pair = || format!("{self}, {peer}");
        self.driver.check("cuDeviceCanAccessPeer", code, pair)?;
        Ok(answer != 0)
    }

    /// Whether atomic operations on the memory of `peer` are done there.
    ///
    /// # Errors
    ///
    /// `peer` is this GPU itself, or the driver has no function that tells it.
    pub fn has_native_atomics(self, peer: Self) -> Result<bool, CallError> {
        const QUESTION: PairQuestion =
            PairQuestion::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        let calls = self.driver.pair_calls.as_ref()?;
        let mut answer = 0;
        // SAFETY: `answer` is a live local that the call only writes.
        let code = unsafe {
            calls.cuDeviceGetP2PAttribute(&raw mut answer, QUESTION, self.handle, peer.handle)
        };
        let pair = || format!("{QUESTION:?} of {self}, {peer}");
        self.driver.check("cuDeviceGetP2PAttribute", code, pair)?;
        Ok(answer != 0)
    }

    fn text(
        self,
        call: &'static str,
        ask: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> u32,
    ) -> Result<String, CallError> {
        let mut text = [0_u8; TEXT_LENGTH as usize];
        // SAFETY: `ask` is one of the two calls that write a string of at most the length given;
        // `text` is a live local of that length.
        let code = unsafe { ask(text.as_mut_ptr().cast(), TEXT_LENGTH, self.handle) };
        self.check(call, code)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn ask(self, question: Question) -> Result<i32, CallError> {
        let mut answer = 0;
        // SAFETY: `answer` is a live local that the call only writes.
        let code = unsafe {
            self.driver.calls.cuDeviceGetAttribute(&raw mut answer, question, self.handle)
        };
        let object = || format!("{question:?} of {self}");
        self.driver.check("cuDeviceGetAttribute", code, object)?;
        Ok(answer)
    }

    fn check(self, call: &'static str, code: u32) -> Result<(), CallError> {
        self.driver.check(call, code, || self.to_string())
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GPU {}", self.ordinal)
    }
}
