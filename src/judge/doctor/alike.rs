//! Parts and hosts that should be alike: what each of them is, and the odd one out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Advice, Facts, Finding, Verdict};
use crate::{
    machine::{
        nics::{Nic, NicKind},
        survey::SurveyedGpu,
        tally,
    },
    units::count,
};

/// What siblings are compared by: values, by the name of the property. What could not be read is
/// left out.
pub(super) type Properties = BTreeMap<String, Value>;

/// What a sibling has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Value {
    pub(super) kind: Kind,
    pub(super) text: String,
}

/// Where a property comes from, and so what a difference means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Kind {
    /// The part itself.
    Hardware,
    /// Somebody has set it.
    Setting,
    /// The version of what is stored on the part.
    Firmware,
    /// A variable of a process.
    Variable,
}

impl Kind {
    fn found(self, seen: String) -> Finding {
        match self {
            Self::Hardware => Finding::problem(seen).with(Advice {
                means: "it is another model than the others, or a part of it does not work: what is \
                        done together waits for the slowest",
                remedy: "restart the machine; if it stays so, take another one (on EC2: stop and \
                         start the instance)",
                ..Advice::default()
            }),
            Self::Setting => Finding::problem(seen).with(Advice {
                means: "somebody has set it so: what is done together waits for the slowest, or \
                        fails on one",
                remedy: "set it as on the others (as root: nvidia-smi -i GPU with -pl, -e, -c or \
                         -pm; ip link set INTERFACE mtu BYTES)",
                ..Advice::default()
            }),
            Self::Firmware => Finding::note(seen).with(Advice {
                means: "a version of firmware has faults and limits of its own",
                remedy: "bring all to one version; on EC2: stop and start the instance, or report \
                         it",
                ..Advice::default()
            }),
            Self::Variable => Finding::note(seen).with(Advice {
                means: "ranks may choose different paths, or wait for each other for ever",
                remedy: "give all ranks the same variables (mpirun -x NAME, srun --export)",
                source: "NCCL user guide, environment variables",
            }),
        }
    }
}

/// A property of a part of a kind.
struct Property<P> {
    name: &'static str,
    kind: Kind,
    of: fn(&P) -> Option<String>,
}

/// Those of GPUs. MIG, lanes of PCIe and NVLinks have checks of their own.
const OF_GPU: [Property<SurveyedGpu>; 11] = [
    Property { name: "memory", kind: Kind::Hardware, of: |gpu| Some(gpu.node.memory.rounded()) },
    Property {
        name: "multiprocessors",
        kind: Kind::Hardware,
        of: |gpu| Some(gpu.multiprocessors.to_string()),
    },
    Property {
        name: "highest SM clock",
        kind: Kind::Hardware,
        of: |gpu| Some(format!("{} MHz", gpu.nvml.as_ref()?.sm_clock_mhz_max?)),
    },
    Property {
        name: "highest memory clock",
        kind: Kind::Hardware,
        of: |gpu| Some(format!("{} MHz", gpu.nvml.as_ref()?.memory_clock_mhz_max?)),
    },
    Property {
        name: "PCIe generation",
        kind: Kind::Hardware,
        of: |gpu| Some(gpu.nvml.as_ref()?.pcie_generation_max?.to_string()),
    },
    Property {
        name: "default power limit",
        kind: Kind::Hardware,
        of: |gpu| Some(format!("{} W", gpu.nvml.as_ref()?.power_limit_default_mw? / 1000)),
    },
    Property { name: "ECC", kind: Kind::Setting, of: |gpu| on_or_off(gpu.nvml.as_ref()?.ecc) },
    Property {
        name: "persistence mode",
        kind: Kind::Setting,
        of: |gpu| on_or_off(gpu.nvml.as_ref()?.persistence),
    },
    Property {
        name: "compute mode",
        kind: Kind::Setting,
        of: |gpu| gpu.nvml.as_ref()?.compute_mode.clone(),
    },
    Property { name: "VBIOS", kind: Kind::Firmware, of: |gpu| gpu.nvml.as_ref()?.vbios.clone() },
    Property {
        name: "InfoROM",
        kind: Kind::Firmware,
        of: |gpu| gpu.nvml.as_ref()?.inforom.clone(),
    },
];

/// Those of network interfaces of one kind. Ports that are down have a check of their own.
const OF_NIC: [Property<Nic>; 5] = [
    Property { name: "PCIe link", kind: Kind::Hardware, of: pcie_link },
    Property {
        name: "rate",
        kind: Kind::Hardware,
        of: |nic| Some(format!("{} Gbit/s", nic.rate_gbit_s()?)),
    },
    Property { name: "driver", kind: Kind::Setting, of: |nic| nic.pci.as_ref()?.driver.clone() },
    Property {
        name: "MTU",
        kind: Kind::Setting,
        of: |nic| Some(format!("{} bytes", nic.mtu_bytes?)),
    },
    Property { name: "firmware", kind: Kind::Firmware, of: |nic| nic.firmware.clone() },
];

fn on_or_off(is_on: Option<bool>) -> Option<String> {
    is_on.map(|is_on| if is_on { "on" } else { "off" }.to_owned())
}

/// A device that is idle may lower the generation, never the lanes.
fn pcie_link(nic: &Nic) -> Option<String> {
    let pci = nic.pci.as_ref()?;
    Some(format!("PCIe{} x{}", pci.link_max.generation?, pci.link.lanes?))
}

fn properties<P>(of: &[Property<P>], part: &P) -> Properties {
    let value = |property: &Property<P>| {
        let value = Value { kind: property.kind, text: (property.of)(part)? };
        Some((property.name.to_owned(), value))
    };
    of.iter().filter_map(value).collect()
}

/// A property in which siblings differ.
pub(super) struct Unlike {
    property: String,
    kind: Kind,
    /// Each value with the places of those that have it, the most common value last.
    values: Vec<(String, Vec<usize>)>,
}

impl Unlike {
    /// All in which these differ.
    pub(super) fn among(siblings: &[Properties]) -> Vec<Self> {
        let names: BTreeSet<&String> = siblings.iter().flat_map(Properties::keys).collect();
        let differing = |property: &String| {
            let mut values: BTreeMap<&Value, Vec<usize>> = BTreeMap::new();
            for (place, sibling) in siblings.iter().enumerate() {
                if let Some(value) = sibling.get(property) {
                    values.entry(value).or_default().push(place);
                }
            }
            let kind = values.keys().next().filter(|_| values.len() > 1)?.kind;
            let mut values: Vec<(String, Vec<usize>)> =
                values.into_iter().map(|(value, places)| (value.text.clone(), places)).collect();
            values.sort_by_key(|(_, places)| places.len());
            Some(Self { property: property.clone(), kind, values })
        };
        names.into_iter().filter_map(differing).collect()
    }

    /// Whether more than half of them, and two at least, are alike.
    fn has_usual(&self) -> bool {
        let all: usize = self.values.iter().map(|(_, places)| places.len()).sum();
        self.values.last().is_some_and(|(_, places)| places.len() > 1 && places.len() * 2 > all)
    }

    /// The places of the odd ones; of all where there is no usual value.
    pub(super) fn odd(&self) -> Vec<usize> {
        let odd = self.values.len() - usize::from(self.has_usual());
        self.values[..odd].iter().flat_map(|(_, places)| places).copied().collect()
    }

    /// What that means; `name` names the sibling in a place.
    pub(super) fn finding(&self, name: impl Fn(usize) -> String) -> Finding {
        self.kind.found(self.seen(name))
    }

    /// `memory: 40.0 GiB (GPU 3), 80.0 GiB (the other 7)`.
    fn seen(&self, name: impl Fn(usize) -> String) -> String {
        let clause = |(number, (value, places)): (usize, &(String, Vec<usize>))| {
            if self.has_usual() && number + 1 == self.values.len() {
                return format!("{value} (the other {})", places.len());
            }
            let names: Vec<String> = places.iter().map(|&place| name(place)).collect();
            format!("{value} ({})", names.join(", "))
        };
        let clauses: Vec<String> = self.values.iter().enumerate().map(clause).collect();
        format!("{}: {}", self.property, clauses.join(", "))
    }
}

/// What most of these have.
fn usual(siblings: &[Properties]) -> Properties {
    let names: BTreeSet<&String> = siblings.iter().flat_map(Properties::keys).collect();
    let most = |property: &String| {
        let counts = tally(siblings.iter().filter_map(|sibling| sibling.get(property)));
        let (value, _) = counts.into_iter().max_by_key(|(_, number)| *number)?;
        Some((property.clone(), value.clone()))
    };
    names.into_iter().filter_map(most).collect()
}

/// What is not alike among parts that `name` names, and fine if there is anything to compare.
fn compared<P>(
    of: &[Property<P>],
    parts: &[&P],
    what: &str,
    name: fn(&P) -> String,
) -> Vec<Finding> {
    let siblings: Vec<Properties> = parts.iter().map(|part| properties(of, part)).collect();
    let unlike = Unlike::among(&siblings);
    let found: Vec<Finding> =
        unlike.iter().map(|unlike| unlike.finding(|place| name(parts[place]))).collect();
    if !found.is_empty() || parts.len() < 2 {
        return found;
    }
    let known: Vec<String> = usual(&siblings).into_keys().collect();
    let seen = format!("{} are alike: {}", count(parts.len(), what), known.join(", "));
    if known.is_empty() { Vec::new() } else { vec![Finding::ok(seen)] }
}

/// The GPUs of this machine, each model by itself.
pub(super) fn gpus(facts: &Facts) -> Vec<Finding> {
    let models = tally(facts.survey.gpus.iter().map(|gpu| &gpu.node.name));
    let mut found = Vec::new();
    if models.len() > 1 {
        let listed = models.iter().map(|(model, number)| format!("{number} × {model}"));
        let seen = format!("several models: {}", listed.collect::<Vec<String>>().join(", "));
        found.push(Finding::note(seen).with(Advice {
            means: "what they do together waits for the slowest; each model is judged by itself",
            ..Advice::default()
        }));
    }
    for model in models.into_keys() {
        let alike = facts.survey.gpus.iter().filter(|gpu| &gpu.node.name == model);
        let alike: Vec<&SurveyedGpu> = alike.collect();
        found.extend(compared(&OF_GPU, &alike, "GPU", |gpu| format!("GPU {}", gpu.node.gpu.0)));
    }
    bad_or_fine(found)
}

/// What is not fine, or else all.
fn bad_or_fine(mut found: Vec<Finding>) -> Vec<Finding> {
    if found.iter().any(|finding| finding.verdict != Verdict::Ok) {
        found.retain(|finding| finding.verdict != Verdict::Ok);
    }
    found
}

/// The RDMA devices of this machine, each kind by itself.
pub(super) fn interfaces(facts: &Facts) -> Vec<Finding> {
    let kinds: BTreeSet<NicKind> = facts.rdma_devices().map(|nic| nic.kind).collect();
    let of_kind = |kind: NicKind| {
        let alike: Vec<&Nic> = facts.rdma_devices().filter(|nic| nic.kind == kind).collect();
        compared(&OF_NIC, &alike, "RDMA device", |nic| nic.name.clone())
    };
    bad_or_fine(kinds.into_iter().flat_map(of_kind).collect())
}

/// What a host is compared with others by: what is usual among its parts, since [`gpus`] and
/// [`interfaces`] name the odd ones, and where they are.
pub(super) fn of_host(facts: &Facts) -> Properties {
    let survey = &facts.survey;
    let mut all = Properties::new();
    let mut add = |name: &str, kind: Kind, text: String| {
        if !text.is_empty() {
            all.insert(name.to_owned(), Value { kind, text });
        }
    };
    let listed = |counts: BTreeMap<String, usize>| {
        let each = counts.into_iter().map(|(what, number)| format!("{number} × {what}"));
        each.collect::<Vec<String>>().join(", ")
    };
    add("GPUs", Kind::Hardware, listed(tally(survey.gpus.iter().map(|gpu| gpu.node.name.clone()))));
    let kinds = tally(facts.rdma_devices().map(|nic| nic.kind.to_string()));
    add("RDMA devices", Kind::Hardware, listed(kinds));
    let gpus: Vec<Properties> = survey.gpus.iter().map(|gpu| properties(&OF_GPU, gpu)).collect();
    let nics: Vec<Properties> = facts.rdma_devices().map(|nic| properties(&OF_NIC, nic)).collect();
    for (parts, what) in [(gpus, "GPUs"), (nics, "RDMA devices")] {
        let each = usual(&parts).into_iter();
        each.for_each(|(name, of)| add(&format!("{name} of {what}"), of.kind, of.text));
    }
    let nodes = survey.gpus.iter().filter_map(|gpu| Some(gpu.node.numa_node?.0.to_string()));
    add("NUMA nodes of GPUs", Kind::Hardware, nodes.collect::<Vec<String>>().join(" "));
    let others = survey.nics.iter().map(|surveyed| &surveyed.nic).filter(|nic| !nic.is_rdma());
    let sizes = others.filter_map(|nic| Some(format!("{} bytes", nic.mtu_bytes?)));
    add("MTU for IP", Kind::Setting, listed(tally(sizes)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn siblings(values: &[&str]) -> Vec<Properties> {
        let value = |text: &&str| Value { kind: Kind::Hardware, text: (*text).to_owned() };
        values.iter().map(|text| [("memory".to_owned(), value(text))].into()).collect()
    }

    fn said(values: &[&str]) -> Vec<(String, Vec<usize>)> {
        let name = |place| format!("GPU {place}");
        let found = Unlike::among(&siblings(values));
        found.iter().map(|unlike| (unlike.seen(name), unlike.odd())).collect()
    }

    #[test]
    fn the_odd_one_is_named_with_what_the_others_have() {
        assert!(said(&["a", "a", "a"]).is_empty() && said(&["a"]).is_empty());
        let one = said(&["a", "a", "b", "a"]);
        assert_eq!(one, [("memory: b (GPU 2), a (the other 3)".to_owned(), vec![2])]);
        let two = said(&["c", "a", "b", "a", "a"]);
        let expected = "memory: b (GPU 2), c (GPU 0), a (the other 3)";
        assert_eq!(two, [(expected.to_owned(), vec![2, 0])]);
        // Nobody is odd where there is no majority.
        let none = said(&["a", "b"]);
        assert_eq!(none, [("memory: a (GPU 0), b (GPU 1)".to_owned(), vec![0, 1])]);
        let halves = said(&["a", "a", "b", "b"]);
        let expected = "memory: a (GPU 0, GPU 1), b (GPU 2, GPU 3)";
        assert_eq!(halves, [(expected.to_owned(), vec![0, 1, 2, 3])]);
    }

    #[test]
    fn what_could_not_be_read_is_not_compared() {
        let mut some = siblings(&["a", "a", "b"]);
        some.push(Properties::new());
        let found = Unlike::among(&some);
        assert_eq!(found[0].seen(|place| place.to_string()), "memory: b (2), a (the other 2)");
        assert_eq!(usual(&some), siblings(&["a"])[0]);
    }
}
