//! What the catalogue knows of an instance type, and of its GPUs.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

/// The catalogue, as it was when this program was built.
static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    toml::from_str(include_str!("catalogue.toml")).expect("a test reads the catalogue")
});

/// The parts of the catalogue that are asked for here.
#[derive(Debug, Deserialize)]
struct Catalogue {
    gpu: BTreeMap<String, Gpu>,
    instance: BTreeMap<String, Instance>,
}

#[derive(Debug, Deserialize)]
struct Gpu {
    compute_capability: Option<f64>,
    nvls_multicast: Option<bool>,
}

/// An instance type. What is `None` is not known.
#[derive(Debug, Deserialize)]
pub struct Instance {
    /// Key of its type of GPU.
    gpu: String,
    /// What the GPU is called.
    pub gpu_name: Option<String>,
    /// GPUs in one instance.
    pub gpu_count: u32,
    /// Interfaces of EFA.
    pub efa_interfaces: Option<u32>,
    /// Whether EFA writes into the memory of another host by itself.
    pub efa_rdma_write: Option<bool>,
    /// Whether EFA's interfaces reach memory of GPUs.
    pub gpudirect_rdma: Option<bool>,
    /// How its GPUs reach each other, in the catalogue's words.
    p2p: Option<String>,
}

impl Instance {
    /// The instance type of this name, such as `p4d.24xlarge`.
    pub fn named(name: &str) -> Option<&'static Self> {
        CATALOGUE.instance.get(name)
    }

    /// Whether its GPUs reach each other over NVLink.
    pub fn has_nvlink(&self) -> bool {
        self.p2p.as_deref().is_some_and(|p2p| p2p.starts_with("nv"))
    }

    /// Whether its GPUs cannot reach each other's memory.
    pub fn lacks_p2p(&self) -> bool {
        self.p2p.as_deref().is_some_and(|p2p| p2p.starts_with("unsupported"))
    }

    /// Whether NVSwitch can reduce and multicast.
    pub fn has_nvls(&self) -> Option<bool> {
        CATALOGUE.gpu.get(&self.gpu)?.nvls_multicast
    }

    /// Whether its GPUs are of compute capability 8.0, for which NCCL reads by default.
    pub fn is_ampere(&self) -> bool {
        let capability = CATALOGUE.gpu.get(&self.gpu).and_then(|gpu| gpu.compute_capability);
        capability.is_some_and(|capability| (capability - 8.0).abs() < 0.01)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_what_the_catalogue_says() {
        let p4d = Instance::named("p4d.24xlarge").unwrap();
        assert_eq!((p4d.gpu_count, p4d.efa_interfaces), (8, Some(4)));
        assert!(p4d.has_nvlink() && !p4d.lacks_p2p() && p4d.is_ampere());
        assert_eq!(p4d.has_nvls(), Some(false));
        assert!(!Instance::named("p5.48xlarge").unwrap().is_ampere());
        assert_eq!(Instance::named("p5.48xlarge").unwrap().has_nvls(), Some(true));
        assert!(Instance::named("g6.48xlarge").unwrap().lacks_p2p());
        assert!(Instance::named("p4d.48xlarge").is_none());
    }
}
