//! The fabric of NVLinks and switches that a GPU joins.

use std::{ffi::c_uint, mem};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use super::Nvml;
use crate::ffi::uuid_text;

/// `nvmlGpuFabricInfo_v2` of nvml.h: the struct's 36 bytes, and its version in the highest byte.
/// It is the beginning of the newer struct, and all that older drivers know.
const FABRIC_INFO_V2: c_uint = 36 | 2 << 24;

/// The parts of `healthMask` that say yes or no: where they begin, and their names.
const HEALTH: [(u32, &str); 4] = [
    (sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, "degraded_bandwidth"),
    (sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, "route_recovery"),
    (sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, "route_unhealthy"),
    (sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY, "access_timeout_recovery"),
];

/// What the part of `healthMask` for a wrong configuration says, by its values.
const WRONG: [(u32, &str); 4] = [
    (
        sys::NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INCORRECT_SYSGUID,
        "incorrect_sysguid",
    ),
    (
        sys::NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INCORRECT_CHASSIS_SN,
        "incorrect_chassis_serial_number",
    ),
    (sys::NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NO_PARTITION, "no_partition"),
    (
        sys::NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INSUFFICIENT_NVLINKS,
        "insufficient_nvlinks",
    ),
];

/// A GPU's place in the NVLink fabric, which Fabric Manager arranges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// How far the GPU has come in joining it.
    pub state: FabricState,
    /// NVML's code for how joining ended, once it is completed; 0 is well.
    pub status: Option<u32>,
    /// The NVLink domain, as a UUID; `None` within a machine, where it has none.
    pub cluster_uuid: Option<String>,
    /// The GPUs of one clique reach each other over NVLink.
    pub clique: Option<u32>,
    /// What is wrong with it: `degraded_bandwidth`, `route_recovery`, `route_unhealthy`,
    /// `access_timeout_recovery`, `incorrect_sysguid`, `incorrect_chassis_serial_number`,
    /// `no_partition`, `insufficient_nvlinks`.
    pub troubles: Vec<String>,
}

/// How far a GPU has come in joining the NVLink fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum FabricState {
    /// There is none for it.
    #[strum(serialize = "-")]
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
        let state = match u32::from(info.state) {
            sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED => FabricState::NotSupported,
            sys::NVML_GPU_FABRIC_STATE_NOT_STARTED => FabricState::NotStarted,
            sys::NVML_GPU_FABRIC_STATE_IN_PROGRESS => FabricState::InProgress,
            sys::NVML_GPU_FABRIC_STATE_COMPLETED => FabricState::Completed,
            _ => return None,
        };
        // nvml.h: the other fields hold nothing before the fabric is joined.
        let is_joined = state == FabricState::Completed;
        Some(Fabric {
            state,
            status: is_joined.then_some(info.status),
            cluster_uuid: (is_joined && info.clusterUuid != [0; 16])
                .then(|| uuid_text(info.clusterUuid)),
            clique: is_joined.then_some(info.cliqueId),
            troubles: if is_joined { troubles(info.healthMask) } else { Vec::new() },
        })
    }
}

/// What a mask says yes to.
fn troubles(mask: c_uint) -> Vec<String> {
    // Two bits each: 0 not told, 1 yes, 2 no.
    let is_told = |&&(begin, _): &&(u32, &str)| mask >> begin & 0b11 == 1;
    let wrong = mask >> sys::NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
        & sys::NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION;
    let wrong = WRONG.iter().filter(|(value, _)| *value == wrong);
    HEALTH.iter().filter(is_told).chain(wrong).map(|&(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_masks_parts_are_told_apart() {
        assert!(troubles(0).is_empty());
        assert!(troubles(0b10_10_10_10).is_empty());
        assert_eq!(troubles(0b10_01_10_01), ["degraded_bandwidth", "route_unhealthy"]);
        assert_eq!(troubles(0x410), ["route_unhealthy", "no_partition"]);
        assert!(troubles(0x100).is_empty(), "none is wrong");
        assert_eq!(troubles(0b01_00_01_00), ["route_recovery", "access_timeout_recovery"]);
    }

    #[test]
    fn a_uuid_has_its_usual_form() {
        let bytes: [u8; 16] = std::array::from_fn(|at| at.try_into().unwrap());
        assert_eq!(uuid_text(bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
