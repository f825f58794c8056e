//! Errors that the driver reports as they happen: Xid.

use nvml_wrapper::{
    EventSet, bitmasks::event::EventTypes, enums::event::XidError, error::NvmlError,
};

use super::Nvml;

/// What the driver gives for an error without a number.
const UNKNOWN: u64 = 999;

/// GPUs whose errors are collected from its creation on. Each GPU has an event set of its own, so
/// that one GPU without events does not hide the others', and a GPU that is gone is known by its
/// set.
#[derive(Debug)]
pub struct Watch(Vec<(String, EventSet<'static>)>);

impl Nvml {
    /// Collects from now on errors of the GPUs at these PCI addresses, where the driver reports
    /// them.
    pub fn watch(&'static self, pci_bus_ids: &[String]) -> Watch {
        let set = |address: &String| {
            let device = self.library.device_by_pci_bus_id(address.as_str()).ok()?;
            let set = self.library.create_event_set().ok()?;
            let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok()?;
            Some((address.clone(), set))
        };
        Watch(pci_bus_ids.iter().filter_map(set).collect())
    }
}

impl Watch {
    /// Errors since the last call: the PCI address of the GPU, and NVIDIA's number. `None` if the
    /// driver reports none.
    pub fn take(&self) -> Option<Vec<(String, u64)>> {
        /// More than come between two cases.
        const MOST: usize = 64;
        let mut errors = Vec::new();
        let mut is_told = false;
        for (address, set) in &self.0 {
            for _ in 0..MOST {
                match set.wait(0) {
                    Ok(event) => {
                        let number = event.event_data.map(|error| match error {
                            XidError::Value(number) => number,
                            XidError::Unknown => UNKNOWN,
                        });
                        errors.extend(number.map(|number| (address.clone(), number)));
                    }
                    Err(NvmlError::Timeout) => {
                        is_told = true;
                        break;
                    }
                    Err(_) => break,
                }
            }
        }
        (is_told || !errors.is_empty()).then_some(errors)
    }
}
