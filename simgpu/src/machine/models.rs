//! What a driver reports of the GPUs in the catalogue and the catalogue does not hold: from
//! vendors' specifications where there are any, else assumed; `docs/machines.md` says which.

/// A type of GPU.
pub(super) struct Model {
    /// Its key in the catalogue.
    pub key: &'static str,
    /// The name that the driver gives.
    pub name: &'static str,
    pub multiprocessors: u32,
    pub sm_clock_mhz: u32,
    pub memory_clock_mhz: u32,
    pub memory_bus_bits: u32,
    /// Generation of PCIe that it speaks, where the catalogue does not say.
    pub pcie_generation: u32,
    /// NVIDIA's number for it: pci.ids, <https://pci-ids.ucw.cz>.
    pub pci_device_id: u32,
}

/// A row of the table.
const fn model(
    key: &'static str,
    name: &'static str,
    multiprocessors: u32,
    [sm_clock_mhz, memory_clock_mhz, memory_bus_bits]: [u32; 3],
    (pcie_generation, pci_device_id): (u32, u32),
) -> Model {
    Model {
        key,
        name,
        multiprocessors,
        sm_clock_mhz,
        memory_clock_mhz,
        memory_bus_bits,
        pcie_generation,
        pci_device_id,
    }
}

/// Every GPU of the catalogue. The memory moves data on both edges of its clock, so that
/// 2 × clock × width is its bandwidth.
pub(super) const MODELS: [Model; 17] = [
    model("k80", "Tesla K80", 13, [875, 2505, 384], (3, 0x102d)),
    model("m60", "Tesla M60", 16, [1178, 2505, 256], (3, 0x13f2)),
    model("v100", "Tesla V100-SXM2", 80, [1530, 877, 4096], (3, 0x1db1)),
    model("t4", "Tesla T4", 40, [1590, 5001, 256], (3, 0x1eb8)),
    model("t4g", "NVIDIA T4G", 40, [1590, 5001, 256], (3, 0x1eb4)),
    model("a10g", "NVIDIA A10G", 80, [1710, 6251, 384], (4, 0x2237)),
    model("a100_40", "NVIDIA A100-SXM4-40GB", 108, [1410, 1215, 5120], (4, 0x20b0)),
    model("a100_80", "NVIDIA A100-SXM4-80GB", 108, [1410, 1593, 5120], (4, 0x20b2)),
    model("l4", "NVIDIA L4", 58, [2040, 6251, 192], (4, 0x27b8)),
    model("l40s", "NVIDIA L40S", 142, [2520, 9001, 384], (4, 0x26b9)),
    model("h100", "NVIDIA H100 80GB HBM3", 132, [1980, 2619, 5120], (5, 0x2330)),
    model("h200", "NVIDIA H200", 132, [1980, 3201, 6144], (5, 0x2335)),
    model("b200", "NVIDIA B200", 148, [1965, 3996, 7680], (5, 0x2901)),
    model("b300", "NVIDIA B300 SXM6 AC", 148, [1920, 3996, 8192], (5, 0x3182)),
    model("gb200", "NVIDIA GB200", 152, [2062, 3996, 8192], (5, 0x2941)),
    model(
        "rtx_pro_4500_se",
        "NVIDIA RTX PRO 4500 Blackwell Server Edition",
        82,
        [2617, 12_501, 256],
        (5, 0x2c3a),
    ),
    model(
        "rtx_pro_6000_se",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        188,
        [2430, 12_481, 512],
        (5, 0x2bb5),
    ),
];
