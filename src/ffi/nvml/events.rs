//! Errors that the driver tells of as they happen: Xid.

use nvml_wrapper::{EventSet, bitmasks::event::EventTypes, enums::event::XidError};

use super::{Nvml, kernel_form};

/// What the driver gives for an error without a number.
const UNKNOWN: u64 = 999;

/// GPUs whose errors are waited for; from its beginning on.
#[derive(Debug)]
pub struct Watch {
    set: EventSet<'static>,
}

impl Nvml {
    /// Waits from now on for errors of the GPUs at these PCI addresses.
    ///
    /// # Errors
    ///
    /// The driver does not tell: what it says instead.
    pub fn watch(&'static self, pci_bus_ids: &[String]) -> Result<Watch, String> {
        let mut set = self.library.create_event_set().map_err(|err| err.to_string())?;
        for address in pci_bus_ids {
            let device = self.library.device_by_pci_bus_id(address.as_str());
            let device = device.map_err(|err| err.to_string())?;
            let registered = device.register_events(EventTypes::CRITICAL_XID_ERROR, set);
            set = registered.map_err(|err| err.error.to_string())?;
        }
        Ok(Watch { set })
    }
}

impl Watch {
    /// Errors since this was asked last: the PCI address of the GPU, and NVIDIA's number.
    pub fn take(&self) -> Vec<(Option<String>, u64)> {
        /// More than come between two cases.
        const MOST: usize = 64;
        let mut errors = Vec::new();
        while errors.len() < MOST {
            let event = match self.set.wait(0) {
                Ok(event) => event,
                Err(_) => break,
            };
            let address = event.device.pci_info().ok().map(|pci| kernel_form(&pci));
            match event.event_data {
                Some(XidError::Value(number)) => errors.push((address, number)),
                Some(XidError::Unknown) => errors.push((address, UNKNOWN)),
                None => {}
            }
        }
        errors
    }
}
