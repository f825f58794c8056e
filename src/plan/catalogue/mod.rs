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
    Attainable, CollectiveBound, CollectiveReference, Collectives, Dmi, Gpu, HostLink,
    HostLinkFacts, Instance, NvLink, Pcie, PcieGeneration, PeerAccess, Positive, Published,
};

/// The only form of the file that there is.
const SCHEMA: u32 = 1;

/// Names that are offered in the place of one that there is not.
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
    pub dmi: Dmi,
    /// Collectives.
    pub collective: Collectives,
    /// What transfers reach of each way.
    pub attainable: BTreeMap<String, Attainable>,
    /// Figures that others published.
    pub published: Vec<Published>,
    /// The names of the entries that the user has added.
    #[serde(skip)]
    added: BTreeSet<String>,
    #[serde(flatten, skip_serializing)]
    _of_nccl: OfNccl,
}

/// What the same file says of NCCL, and others read: [`super::nccl_env`] its variables.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfNccl {
    #[serde(rename = "nccl_env")]
    _variables: IgnoredAny,
    #[serde(rename = "nccl_env_other")]
    _others: IgnoredAny,
    #[serde(rename = "nccl_env_nonexistent")]
    _nonexistent: IgnoredAny,
    /// The forms of NCCL's log lines.
    #[serde(rename = "nccl_log")]
    _log: IgnoredAny,
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

/// What is wrong with a user's file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}{}: {problem}", in_key(.key))]
pub struct BadCatalogue {
    /// Counted from 1.
    pub line: usize,
    /// The key, with the tables it is in; empty if the line is no TOML.
    pub key: String,
    /// What is wrong: a sentence.
    pub problem: String,
}

fn in_key(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(", key `{key}`") }
}

impl Catalogue {
    /// What was known when this program was built.
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }

    /// The same with what the text of a user's file adds: an entry of a name that is there takes
    /// its place.
    pub fn with(&self, text: &str) -> Result<Self, BadCatalogue> {
        let bad = |at: usize, key: String, problem: String| {
            let line = 1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count();
            BadCatalogue { line, key, problem: problem.replace('\n', " ") }
        };
        let addition: Addition = toml::from_str(text).map_err(|mut error: toml::de::Error| {
            let at = error.span().map_or(0, |span| span.start);
            // Only without the text to show does the error tell the key, behind its message.
            error.set_input(None);
            let shown = error.to_string();
            let key =
                shown.rsplit_once("in `").and_then(|(_, key)| key.trim_end().strip_suffix('`'));
            bad(at, key.unwrap_or_default().to_owned(), problem_of(error.message()))
        })?;
        if *addition.schema.get_ref() != SCHEMA {
            let problem =
                format!("{} is not {SCHEMA}, the only one there is", addition.schema.get_ref());
            return Err(bad(addition.schema.span().start, "schema".to_owned(), problem));
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
                let problem = format!(
                    "there is no GPU `{gpu}`: describe it as [gpu.{gpu}], or name one that is known, such as {near}"
                );
                return Err(bad(instance.span().start, format!("instance.{name}.gpu"), problem));
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

    /// The words for a source; a name that the catalogue does not explain is words itself.
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
    /// Data in one packet, in bytes: what most roots and guests have; it is not told to programs
    /// without privileges.
    pub const PACKET_BYTES: f64 = 256.0;

    /// A generation.
    pub const fn generation(&self, generation: u32) -> Option<&PcieGeneration> {
        Some(match generation {
            1 => &self.gen1,
            2 => &self.gen2,
            3 => &self.gen3,
            4 => &self.gen4,
            5 => &self.gen5,
            _ => return None,
        })
    }

    /// The share of the raw rate that is data, in packets of [`Pcie::PACKET_BYTES`] with headers of
    /// four words.
    pub fn efficiency(&self) -> f64 {
        Self::PACKET_BYTES / (Self::PACKET_BYTES + self.tlp_overhead_bytes_4dw.get())
    }
}

/// What the reader of TOML says, with the nearest key in the place of a list of all.
fn problem_of(message: &str) -> String {
    let Some((unknown, list)) = message.split_once(", expected one of ") else {
        return message.to_owned();
    };
    let Some(name) = unknown.split('`').nth(1) else { return message.to_owned() };
    let keys: Vec<String> = list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    match nearest(name, keys.iter()).first() {
        Some(key) => format!("{unknown}; the nearest that there is is `{key}`"),
        None => message.to_owned(),
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
