//! What NVML says of the GPUs.

use g2g::ffi::nvml::{CommonAncestor, FabricState, Nvml, PeerStatus, Remote};

use super::*;

on_both_machines! {
    one GPU: [nvml_and_the_driver_mean_the_same_gpu]
    two GPUs: [what_nvml_says_of_a_pair_fits_the_driver]
}

fn nvml_and_the_driver_mean_the_same_gpu(gpus: &[Context]) {
    let nvml = Nvml::load().unwrap();
    assert!(nvml.driver_version().is_some());
    for device in gpus.iter().map(Context::device) {
        let address = device.pci_bus_id().unwrap();
        let gpu = nvml.gpu(&address).unwrap();
        assert_eq!(gpu.pci_bus_id, address);
        assert_eq!(gpu.name, Some(device.name().unwrap()));
        assert_eq!(gpu.uuid, Some(device.uuid().unwrap()));
        assert!(nvml.condition(&address).unwrap().sm_clock_mhz <= gpu.sm_clock_mhz_max);
    }
    assert!(nvml.gpu("0000:ff:1f.0").is_none());
}

fn what_nvml_says_of_a_pair_fits_the_driver(gpus: &[Context]) {
    let nvml = Nvml::load().unwrap();
    let [near, far] = [&gpus[0], &gpus[1]].map(Context::device);
    let [here, there] = [near, far].map(|device| device.pci_bus_id().unwrap());
    let pair = nvml.pair(&here, &there).unwrap();
    let both = pair.read == Some(PeerStatus::Ok) && pair.write == Some(PeerStatus::Ok);
    assert_eq!(both, near.can_access_peer(far).unwrap(), "{pair:?}");
    assert!(pair.common_ancestor.is_some());
    assert_eq!(nvml.pair(&there, &here).unwrap().common_ancestor, pair.common_ancestor);
    assert!(nvml.pair(&here, "0000:ff:1f.0").is_none());
}

#[test]
fn links_and_conditions_of_the_simulated_machine_are_told() {
    let gpus = simulated_gpus();
    let nvml = Nvml::load().unwrap();
    let [near, far] = [0, 1].map(|at| gpus[at].device().pci_bus_id().unwrap());
    let gpu = nvml.gpu(&far).unwrap();
    assert_eq!(gpu.numa_node, Some(1));
    assert_eq!(gpu.fabric.map(|fabric| fabric.state), Some(FabricState::Completed));
    assert_eq!(gpu.mig, Some(false));
    assert_eq!(gpu.nvlinks.iter().map(|link| link.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let up: Vec<bool> = gpu.nvlinks.iter().map(|link| link.active).collect();
    assert_eq!(up, [true, true, false, true]);
    assert_eq!(gpu.nvlinks[0].remote, Some(Remote::Switch));
    assert!(gpu.nvlinks[0].remote_pci_bus_id.is_some() && gpu.nvlinks[0].version.is_some());
    let condition = nvml.condition(&far).unwrap();
    assert!(condition.throttle_reasons.unwrap().contains(&"hw_slowdown".to_owned()));
    assert_eq!((condition.pcie_generation, gpu.pcie_generation_max), (Some(3), Some(5)));
    assert_eq!((condition.pcie_lanes, gpu.pcie_lanes_max), (Some(8), Some(16)));
    let pair = nvml.pair(&near, &far).unwrap();
    assert_eq!(pair.nvlink, Some(PeerStatus::Ok));
    assert_eq!(pair.common_ancestor, Some(CommonAncestor::System));
}
