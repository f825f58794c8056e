//! How a GPU is doing now.

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use serde::{Deserialize, Serialize};

use super::Nvml;

/// What changes from moment to moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Condition {
    /// The PCI Express generation in use; an idle GPU goes back to an older one.
    pub pcie_generation: Option<u32>,
    /// The PCI Express lanes in use.
    pub pcie_lanes: Option<u32>,
    /// The clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// The clock of the memory, in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Why clocks are throttled, by NVML's names: `gpu_idle`, `sw_power_cap`, `hw_slowdown`, …
    pub throttle_reasons: Option<Vec<String>>,
    /// The temperature of its chip, in degrees Celsius.
    pub temperature_c: Option<u32>,
    /// What it takes, in thousandths of a watt.
    pub power_mw: Option<u32>,
    /// The most that it may take, in thousandths of a watt.
    pub power_limit_mw: Option<u32>,
}

impl Nvml {
    /// How the GPU at `pci_bus_id` is doing now; `None` as for [`Nvml::gpu`].
    pub fn condition(&self, pci_bus_id: &str) -> Option<Condition> {
        let device = self.device(pci_bus_id)?;
        let reasons = device.current_throttle_reasons().ok();
        Some(Condition {
            pcie_generation: device.current_pcie_link_gen().ok(),
            pcie_lanes: device.current_pcie_link_width().ok(),
            sm_clock_mhz: device.clock_info(Clock::SM).ok(),
            memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
            throttle_reasons: reasons.map(|reasons| {
                reasons.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect()
            }),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
            power_mw: device.power_usage().ok(),
            power_limit_mw: device.enforced_power_limit().ok(),
        })
    }
}
