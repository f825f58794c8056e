//! PCI Express access control (ACS): the bridges that redirect requests between devices below them
//! to the root complex.
//!
//! The numbers are those of the kernel's `include/uapi/linux/pci_regs.h`. Only root may read that
//! part of a device's configuration.

use std::collections::BTreeSet;

use super::{
    survey::Survey,
    system::{System, Unread},
};

/// The bytes of a configuration that every user may read (`pci_read_config` of the kernel's
/// `drivers/pci/pci-sysfs.c`).
const SHOWN_TO_ALL: usize = 64;

/// Where capabilities of PCI Express begin, each with a header of 4 bytes.
const EXTENDED: usize = 0x100;

/// The number of the capability (`PCI_EXT_CAP_ID_ACS`), where its settings stand in it
/// (`PCI_ACS_CTRL`), and the bit that redirects requests between peers (`PCI_ACS_RR`).
const ACS: u32 = 0x0d;
const CONTROL: usize = 6;
const REDIRECTS: u16 = 0x04;

/// What the bridges above the GPUs and the devices for RDMA do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acs {
    /// The addresses of those that redirect.
    pub redirecting: Vec<String>,
    /// The number of bridges that were read.
    pub read: usize,
    /// The number of bridges that only root may read.
    pub denied: usize,
}

impl Acs {
    /// Reads the bridges above the devices of `survey`.
    pub fn read(system: &System, survey: &Survey) -> Self {
        let of_gpus = survey.gpus.iter().map(|gpu| &gpu.node.pcie_path);
        let of_rdma = survey.nics.iter().filter(|nic| nic.nic.is_rdma());
        let of_nics = of_rdma.filter_map(|nic| Some(&nic.nic.pci.as_ref()?.path));
        // The first part is the host bridge, which is no device; the last is the device itself.
        let bridges = of_gpus.chain(of_nics).flat_map(|path| {
            let above = path.len().saturating_sub(1);
            path.iter().take(above).skip(1)
        });
        let bridges: BTreeSet<&String> = bridges.collect();
        let mut acs = Self::default();
        for bridge in bridges {
            match system.bytes(format!("/sys/bus/pci/devices/{bridge}/config")) {
                Ok(config) if config.len() > EXTENDED => {
                    acs.read += 1;
                    if redirects(&config) {
                        acs.redirecting.push(bridge.clone());
                    }
                }
                // Other users than root see the first 64 bytes.
                Ok(config) if config.len() <= SHOWN_TO_ALL => acs.denied += 1,
                Err(Unread::Denied(_)) => acs.denied += 1,
                // A bridge older than PCI Express has no such control.
                Ok(_) | Err(_) => {}
            }
        }
        acs
    }
}

/// Whether a bridge with this configuration redirects.
fn redirects(config: &[u8]) -> bool {
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(config.get(at..at + 4)?.try_into().ok()?))
    };
    let mut at = EXTENDED;
    let mut seen = BTreeSet::new();
    while let Some(header) = word(at).filter(|_| at >= EXTENDED && seen.insert(at)) {
        if header & 0xffff == ACS {
            let control = config.get(at + CONTROL..at + CONTROL + 2);
            let control = control.and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes);
            return control.is_some_and(|control| control & REDIRECTS != 0);
        }
        at = (header >> 20 & 0xffc) as usize;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration with two capabilities, the second of which is access control.
    fn config(control: u8) -> Vec<u8> {
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&(0x1_u32 | 1 << 16 | 0x150 << 20).to_le_bytes());
        config[0x150..0x154].copy_from_slice(&(ACS | 1 << 16).to_le_bytes());
        config[0x156] = control;
        config
    }

    #[test]
    fn a_bridge_redirects_if_its_settings_say_so_and_nonsense_ends() {
        assert!(redirects(&config(0x1d)) && !redirects(&config(0x01)));
        assert!(!redirects(&config(0x1d)[..0x152]));
        let mut circle = config(0x1d);
        circle[0x100..0x104].copy_from_slice(&(0x1_u32 | 0x100 << 20).to_le_bytes());
        assert!(!redirects(&circle));
        assert!(!redirects(&[0xff; 4096]) && !redirects(&[]));
    }
}
