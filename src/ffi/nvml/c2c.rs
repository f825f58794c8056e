//! The links between a GPU and a CPU that are chips of one module.

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::field_id;
use serde::{Deserialize, Serialize};

use super::Nvml;
use crate::units;

/// More links than any GPU has: a bound on what a broken driver can make us ask.
const LINKS_MAX: u64 = 64;

/// NVLink-C2C: the links from a GPU to its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct C2c {
    /// How many there are.
    pub links: u32,
    /// How many of them are up.
    pub active: u32,
    /// What those that are up carry together in one direction, in GB/s.
    pub gb_s: Option<f64>,
}

impl Nvml {
    /// `None` where there are none.
    pub(super) fn c2c(&self, device: &Device<'_>) -> Option<C2c> {
        let count = self.field(device, field_id::NVML_FI_DEV_C2C_LINK_COUNT, 0)?;
        let links = u32::try_from(count.min(LINKS_MAX)).ok().filter(|&links| links > 0)?;
        let ask = |id| move |link: &u32| self.field(device, id, *link);
        let is_up = ask(field_id::NVML_FI_DEV_C2C_LINK_GET_STATUS);
        let up: Vec<u32> = (0..links).filter(|link| is_up(link) == Some(1)).collect();
        let rates = up.iter().map(ask(field_id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW));
        let together: Option<f64> = rates.map(|mb_s| mb_s.map(units::giga_of_mega)).sum();
        Some(C2c {
            links,
            active: u32::try_from(up.len()).unwrap_or(links),
            gb_s: together.filter(|&gb_s| gb_s > 0.0),
        })
    }
}
