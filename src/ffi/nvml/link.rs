//! The NVLinks of a GPU.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings as sys;
use serde::Serialize;

use super::{Nvml, kernel_form};

/// One NVLink of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remote {
    /// Another GPU.
    Gpu,
    /// An NVSwitch.
    Switch,
    /// A CPU with NVLinks.
    Cpu,
}

impl Nvml {
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
