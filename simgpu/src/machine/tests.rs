use std::fs;

use super::*;

/// The machine of a file's text.
fn file(text: &str) -> Machine {
    load_text(text).unwrap_or_else(|err| panic!("{err}\n{text}"))
}

fn load_text(text: &str) -> Result<Machine, BadMachine> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("given.toml");
    fs::write(&path, text).unwrap();
    load(path.to_str().unwrap())
}

/// Asserts what holds for every machine, whatever it was made from.
fn is_whole(machine: &Machine) {
    let gpus = u32::try_from(machine.gpus.len()).unwrap();
    assert!((1..=GPUS_MAX).contains(&gpus), "{}", machine.name);
    let keys: Vec<(u32, u32)> = machine.pairs.iter().map(|p| (p.source, p.target)).collect();
    let all = (0..gpus).flat_map(|s| (0..gpus).map(move |t| (s, t))).filter(|(s, t)| s != t);
    assert_eq!(keys, all.collect::<Vec<_>>(), "{}", machine.name);
    for pair in &machine.pairs {
        for rate in [pair.ce_read, pair.ce_write, pair.sm_read, pair.sm_write] {
            assert!(rate.gb_s > 0.0 && rate.gb_s.is_finite() && rate.latency_ns >= 0.0, "{pair:?}");
        }
    }
    for gpu in &machine.gpus {
        for rates in [gpu.local, gpu.from_host, gpu.to_host] {
            assert!(rates.ce.gb_s > 0.0 && rates.sm.gb_s > 0.0, "{}: {gpu:?}", machine.name);
        }
        assert!(gpu.nvlinks.count <= NVLINKS_MAX, "{}", machine.name);
        assert_eq!(gpu.nvlinks.generation == 0, gpu.nvlinks.count == 0, "{}", machine.name);
        assert_eq!(machine.gpus.iter().filter(|other| other.pci == gpu.pci).count(), 1);
    }
}

#[test]
fn every_instance_of_the_catalogue_is_a_machine() {
    let mut count = 0;
    for name in instance::names() {
        let machine = load(name).unwrap();
        is_whole(&machine);
        let known = &catalogue::CATALOGUE.instance[name];
        assert_eq!(machine.gpus.len(), known.gpu_count as usize, "{name}");
        for gpu in &machine.gpus {
            assert_eq!(gpu.nvlinks.count, known.nvlink_links_per_gpu.unwrap_or(0), "{name}");
        }
        count += 1;
    }
    assert!(count >= 60, "{count}");
}

/// The links of each pair as `nvidia-smi topo -m` shows them, a row for each source.
fn shown(machine: &Machine) -> Vec<String> {
    let cell = |source: u32, target: u32| match machine.pair(source, target) {
        None => "X".to_owned(),
        Some(Pair { link: Link::NvLink(links), .. }) => format!("NV{links}"),
        Some(_) => {
            let [a, b] = [source, target].map(|ordinal| &machine.gpus[ordinal as usize]);
            match a.numa_node == b.numa_node {
                true if a.pcie_switch.is_some() && a.pcie_switch == b.pcie_switch => "PIX",
                true => "NODE",
                false => "SYS",
            }
            .to_owned()
        }
    };
    let gpus = 0..u32::try_from(machine.gpus.len()).unwrap();
    let rows = gpus.clone().map(|source| gpus.clone().map(|t| cell(source, t)).collect());
    rows.map(|cells: Vec<String>| cells.join(" ")).collect()
}

#[test]
fn instances_have_the_topology_that_nvidia_smi_shows_on_them() {
    for (name, links) in [("p4d.24xlarge", "NV12"), ("p5.48xlarge", "NV18")] {
        let machine = load(name).unwrap();
        for (at, row) in shown(&machine).into_iter().enumerate() {
            let mut cells = [links; 8];
            cells[at] = "X";
            assert_eq!(row, cells.join(" "), "{name}");
        }
        let nodes: Vec<u32> = machine.gpus.iter().map(|gpu| gpu.numa_node).collect();
        assert_eq!(nodes, [0, 0, 0, 0, 1, 1, 1, 1], "{name}");
    }
    let g6e = load("g6e.12xlarge").unwrap();
    let rows = ["X NODE NODE NODE", "NODE X NODE NODE", "NODE NODE X NODE", "NODE NODE NODE X"];
    assert_eq!(shown(&g6e), rows);
    let p3 = load("p3.16xlarge").unwrap();
    assert_eq!(shown(&p3)[0], "X NV1 NV1 NV2 NV2 SYS SYS SYS");
    assert_eq!(shown(&p3)[6], "SYS SYS NV1 SYS NV1 NV2 X NV2");
}
