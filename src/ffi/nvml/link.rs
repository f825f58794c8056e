//! The NVLinks of a GPU.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{self as sys, field_id};
use serde::{Deserialize, Serialize};

use super::{Nvml, kernel_form};
use crate::units;

/// One NVLink of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLink {
    /// Its number on this GPU, from 0.
    pub number: u32,
    /// Whether it is up.
    pub active: bool,
    /// NVML's number for its generation.
    pub version: Option<u32>,
    /// What is at its other end.
    pub remote: Option<Remote>,
    /// The PCI address of what is at its other end.
    pub remote_pci_bus_id: Option<String>,
}

/// What an NVLink ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remote {
    /// Another GPU.
    Gpu,
    /// An NVSwitch.
    Switch,
    /// A CPU with NVLinks.
    Cpu,
}

impl NvLink {
    /// Its generation: NVML's numbers stand for versions such as 2.0, 2.2 and 3.1 (nvml.h,
    /// `nvmlNvlinkVersion_t`).
    pub const fn generation(&self) -> Option<u32> {
        match self.version {
            Some(sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_1_0) => Some(1),
            Some(
                sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_0
                | sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_2_2,
            ) => Some(2),
            Some(
                sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_0
                | sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_3_1,
            ) => Some(3),
            Some(sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_4_0) => Some(4),
            Some(sys::nvmlNvlinkVersion_enum_NVML_NVLINK_VERSION_5_0) => Some(5),
            _ => None,
        }
    }
}

impl Nvml {
    /// What one NVLink carries in one direction, in GB/s.
    pub(super) fn nvlink_gb_s(&self, device: &Device<'_>) -> Option<f64> {
        let mb_s = self.field(device, field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 0)?;
        Some(units::giga_of_mega(mb_s)).filter(|&gb_s| gb_s > 0.0)
    }

    pub(super) fn nvlinks(&self, device: &Device<'_>) -> Vec<NvLink> {
        // A GPU without NVLinks, or with fewer, answers an error for those that it has not.
        let link = |number| {
            let link = device.link_wrapper_for(number);
            Some(NvLink {
                number,
                active: link.is_active().ok()?,
                version: link.version().ok(),
                remote: self.remote(device, number),
                remote_pci_bus_id: link.remote_pci_info().ok().map(|remote| kernel_form(&remote)),
            })
        };
        (0..sys::NVML_NVLINK_MAX_LINKS).filter_map(link).collect()
    }

    /// What a link ends in; the wrapper's own call gives its answer away.
    fn remote(&self, device: &Device<'_>, number: c_uint) -> Option<Remote> {
        let ask = self.library.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref().ok()?;
        // SAFETY: the handle is used while the library is loaded, and by the call below only.
        let handle = unsafe { device.handle() };
        let mut kind = sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
        // SAFETY: the handle is a device's; `kind` is a live local that the call only writes.
        let code = unsafe { ask(handle, number, &raw mut kind) };
        if code != sys::nvmlReturn_enum_NVML_SUCCESS {
            return None;
        }
        match kind {
            sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU => Some(Remote::Gpu),
            sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH => {
                Some(Remote::Switch)
            }
            sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU => Some(Remote::Cpu),
            _ => None,
        }
    }
}
