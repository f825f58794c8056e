//! What is known of GPUs, links and EC2 instances, from public sources, and what the user adds.
//!
//! Owns the facts. What follows from them is worked out in `expected`.

mod entries;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use serde::{Deserialize, Serialize, de::IgnoredAny};
use toml::Spanned;

pub use entries::{
    Attainable, CollectiveReference, Collectives, Gpu, HostLink, HostLinkFacts, Instance, NvLink,
    Pcie, PcieGeneration, PeerAccess, Positive, Published,
};

use super::{
    bad_file::{BadFile, Problem},
    nccl_env::{Nonexistent, OtherVariable, Variable},
};

/// The only version of the file's format.
const SCHEMA: u32 = 1;

/// The number of names suggested for an unknown one.
const NAMES_OFFERED: usize = 3;

/// The catalogue, as it was when this program was built.
static BUILT_IN: LazyLock<Catalogue> = LazyLock::new(|| {
    toml::from_str(include_str!("../catalogue.toml")).expect("a test reads the catalogue")
});

/// What is known.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// The form of the file.
    schema: u32,
    /// What each name of a source stands for.
    pub source: BTreeMap<String, String>,
    /// Types of GPUs, by key.
    pub gpu: BTreeMap<String, Gpu>,
    /// Generations of NVLink: `gen1` and so on.
    pub nvlink: BTreeMap<String, NvLink>,
    /// PCIe.
    pub pcie: Pcie,
    /// Links between GPUs and hosts that are not PCIe.
    pub host_link: BTreeMap<String, HostLinkFacts>,
    /// Instance types, by name.
    pub instance: BTreeMap<String, Instance>,
    /// Where a machine says which one it is.
    pub dmi: toml::Table,
    /// Collectives.
    pub collective: Collectives,
    /// What transfers reach of each way.
    pub attainable: BTreeMap<String, Attainable>,
    /// Figures that others published.
    pub published: Vec<Published>,
    /// The names of the entries that the user has added.
    #[serde(skip)]
    added: BTreeSet<String>,
    /// Names of settings, by what they begin with.
    #[serde(skip_serializing)]
    pub(super) setting: BTreeMap<String, String>,
    /// NCCL's variables whose values are known.
    #[serde(skip_serializing)]
    pub(super) nccl_env: BTreeMap<String, Variable>,
    /// NCCL's variables of which little is known.
    #[serde(skip_serializing)]
    pub(super) nccl_env_other: BTreeMap<String, OtherVariable>,
    /// Names of variables that circulate although no NCCL reads them.
    #[serde(skip_serializing)]
    pub(super) nccl_env_nonexistent: Nonexistent,
    /// The forms of NCCL's log lines, which others read.
    #[serde(skip_serializing, rename = "nccl_log")]
    _nccl_log: IgnoredAny,
}

/// What a user's file may add.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Addition {
    schema: Spanned<u32>,
    #[serde(default)]
    source: BTreeMap<String, String>,
    #[serde(default)]
    gpu: BTreeMap<String, Spanned<Gpu>>,
    #[serde(default)]
    instance: BTreeMap<String, Spanned<Instance>>,
}

/// An entry by its name.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// A type of GPU.
    Gpu(&'a Gpu),
    /// An instance type.
    Instance(&'a Instance),
}

impl Catalogue {
    /// What was known when this program was built.
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }

    /// The catalogue with the entries of a user's file, which replace those of the same name.
    pub fn with(&self, text: &str) -> Result<Self, BadFile> {
        self.extended(text).map_err(|problem| problem.in_file(text))
    }

    fn extended(&self, text: &str) -> Result<Self, Problem> {
        let addition: Addition =
            toml::from_str(text).map_err(|err| Problem::from(err).told(with_nearest_key))?;
        let schema = *addition.schema.get_ref();
        if schema != SCHEMA {
            let text = format!("{schema} is not {SCHEMA}, the only one there is");
            return Err(Problem::new(&addition.schema, "schema", text));
        }
        let mut whole = self.clone();
        whole.source.extend(addition.source);
        for (key, gpu) in addition.gpu {
            whole.added.insert(key.clone());
            whole.gpu.insert(key, gpu.into_inner());
        }
        for (name, instance) in addition.instance {
            let gpu = &instance.get_ref().gpu;
            if !whole.gpu.contains_key(gpu) {
                let near = nearest(gpu, whole.gpu.keys()).join(", ");
                let text = format!(
                    "there is no GPU `{gpu}`: describe it as [gpu.{gpu}], or name one that is \
                     known, such as {near}"
                );
                return Err(Problem::new(&instance, &format!("instance.{name}.gpu"), text));
            }
            whole.added.insert(name.clone());
            whole.instance.insert(name, instance.into_inner());
        }
        Ok(whole)
    }

    /// The entry of this name: an instance type such as `p4d.24xlarge`, or the key of a GPU.
    pub fn entry(&self, name: &str) -> Option<Entry<'_>> {
        let instance = self.instance.get(name).map(Entry::Instance);
        instance.or_else(|| self.gpu.get(name).map(Entry::Gpu))
    }

    /// Whether the user has added the entry of this name.
    pub fn is_added(&self, name: &str) -> bool {
        self.added.contains(name)
    }

    /// The names of entries that are most like `name`, the nearest first.
    pub fn nearest(&self, name: &str) -> Vec<&str> {
        nearest(name, self.instance.keys().chain(self.gpu.keys()))
    }

    /// The description of a source; a name without one is its own description.
    pub fn words_of<'a>(&'a self, source: &'a str) -> &'a str {
        self.source.get(source).map_or(source, String::as_str)
    }

    /// The GPU of an instance.
    pub fn gpu_of(&self, instance: &Instance) -> Option<&Gpu> {
        self.gpu.get(&instance.gpu)
    }

    /// The key of the GPU that a driver gives this name; `None` for one that is not known, and for
    /// a part of one.
    pub fn key_of_driver_name(&self, name: &str) -> Option<&str> {
        let bare = ["NVIDIA ", "Tesla "].iter().find_map(|maker| name.strip_prefix(maker));
        let bare = bare.unwrap_or(name);
        let is_it = |gpu: &Gpu| gpu.driver_names.iter().any(|known| known == bare);
        self.gpu.iter().find(|(_, gpu)| is_it(gpu)).map(|(key, _)| key.as_str())
    }

    /// A generation of NVLink.
    pub fn nvlink_generation(&self, generation: u32) -> Option<&NvLink> {
        self.nvlink.get(&format!("gen{generation}"))
    }
}

impl Pcie {
    /// Bytes of data in one packet, as on most machines; unprivileged programs cannot read it.
    pub const PACKET_BYTES: f64 = 256.0;

    /// A generation.
    pub fn generation(&self, generation: u32) -> Option<&PcieGeneration> {
        let all = [&self.gen1, &self.gen2, &self.gen3, &self.gen4, &self.gen5];
        (1..).zip(all).find(|(number, _)| *number == generation).map(|(_, found)| found)
    }

    /// The share of the raw rate that is data, in packets of [`Pcie::PACKET_BYTES`] with headers of
    /// four words.
    pub fn efficiency(&self) -> f64 {
        Self::PACKET_BYTES / (Self::PACKET_BYTES + self.tlp_overhead_bytes_4dw.get())
    }
}

/// The message of the TOML parser, with the nearest key instead of a list of all keys.
fn with_nearest_key(message: String) -> String {
    let Some((unknown, list)) = message.split_once(", expected one of ") else { return message };
    let name = unknown.split('`').nth(1).unwrap_or_default();
    let keys: Vec<String> = list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    match nearest(name, keys.iter()).first() {
        Some(key) => format!("{unknown}; the nearest that there is is `{key}`"),
        None => message,
    }
}

/// Those of `names` that are most like `name`, the nearest first; nearest of all are those that
/// begin with it.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let wanted = name.to_lowercase();
    let mut names: Vec<&str> = names.map(String::as_str).collect();
    let begins_alike = |known: &str| !wanted.is_empty() && known.starts_with(&wanted);
    names.sort_by_key(|known| (!begins_alike(known), strsim::osa_distance(&wanted, known)));
    names.truncate(NAMES_OFFERED);
    names
}

impl Instance {
    /// The instance type of this name, such as `p4d.24xlarge`.
    pub fn named(name: &str) -> Option<&'static Self> {
        BUILT_IN.instance.get(name)
    }

    /// Whether its GPUs reach each other over NVLink.
    pub fn has_nvlink(&self) -> bool {
        use PeerAccess::{Nvlink, NvlinkHybridCubeMesh, NvswitchAllPairs};
        matches!(self.p2p, Some(NvswitchAllPairs | Nvlink | NvlinkHybridCubeMesh))
    }

    /// Whether its GPUs cannot reach each other's memory.
    pub fn lacks_p2p(&self) -> bool {
        matches!(self.p2p, Some(PeerAccess::Unsupported | PeerAccess::UnsupportedOrBroken))
    }

    /// Whether NVSwitch can reduce and multicast.
    pub fn has_nvls(&self) -> Option<bool> {
        BUILT_IN.gpu_of(self)?.nvls_multicast
    }

    /// Whether its GPUs are of compute capability 8.0, for which NCCL reads by default.
    pub fn is_ampere(&self) -> bool {
        let capability = BUILT_IN.gpu_of(self).and_then(|gpu| gpu.compute_capability);
        capability.is_some_and(|capability| (capability.get() - 8.0).abs() < 0.01)
    }
}
