//! The fabric of NVLinks and switches that a GPU joins.

use std::{ffi::c_uint, mem};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings as sys;
use serde::Serialize;

use super::Nvml;

/// `nvmlGpuFabricInfo_v2` of nvml.h: the struct's 36 bytes, and its version in the highest byte.
/// It is the beginning of the newer struct, and all that older drivers know.
const FABRIC_INFO_V2: c_uint = 36 | 2 << 24;

/// How far a GPU has come in joining the NVLink fabric, which Fabric Manager arranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fabric {
    /// There is none for it.
    NotSupported,
    /// It has not begun.
    NotStarted,
    /// It is under way.
    InProgress,
    /// It is done, well or not.
    Completed,
}

impl Nvml {
    /// The wrapper has no call for it.
    pub(super) fn fabric(&self, device: &Device<'_>) -> Option<Fabric> {
        let ask = self.library.lib().nvmlDeviceGetGpuFabricInfoV.as_ref().ok()?;
        // SAFETY: the handle is used while the library is loaded, and by the call below only.
        let handle = unsafe { device.handle() };
        // SAFETY: an all-zero value is a valid one of this plain C struct.
        let mut info: sys::nvmlGpuFabricInfoV_t = unsafe { mem::zeroed() };
        info.version = FABRIC_INFO_V2;
        // SAFETY: the handle is a device's; `info` is a live local, larger than what the call
        // writes for the version that it names.
        let code = unsafe { ask(handle, &raw mut info) };
        if code != sys::nvmlReturn_enum_NVML_SUCCESS {
            return None;
        }
        match u32::from(info.state) {
            sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED => Some(Fabric::NotSupported),
            sys::NVML_GPU_FABRIC_STATE_NOT_STARTED => Some(Fabric::NotStarted),
            sys::NVML_GPU_FABRIC_STATE_IN_PROGRESS => Some(Fabric::InProgress),
            sys::NVML_GPU_FABRIC_STATE_COMPLETED => Some(Fabric::Completed),
            _ => None,
        }
    }
}
