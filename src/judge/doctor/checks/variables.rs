//! Variables of NCCL, libfabric and CUDA: those without effect, and those that switch a path off.

use super::{Advice, Facts, Finding};
use crate::{
    plan::{
        nccl_env::{Gravity, Setting, findings},
        rdma::{UNSOLICITED, is_no},
    },
    units::count,
};

/// What a value of a variable does to a path.
struct Switch {
    name: &'static str,
    /// Whether the trimmed value switches the path off.
    is_off: fn(&str) -> bool,
    /// Whether the machine has the path.
    matters: fn(&Facts) -> bool,
    /// Whether it is a problem rather than a note.
    is_problem: bool,
    /// The effect on the path.
    means: &'static str,
    source: &'static str,
}

/// The values that libfabric and AWS's plugin accept as yes.
fn is_yes(value: &str) -> bool {
    ["1", "true", "yes", "on"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// Whether GPUs of this host reach each other. A process with one GPU cannot see it; the instance
/// type decides then, if it is known.
fn have_peers(facts: &Facts) -> Option<bool> {
    let pairs = &facts.survey.pairs;
    if !pairs.is_empty() {
        return Some(pairs.iter().any(|pair| pair.access));
    }
    if facts.gpu_count() < 2 {
        return Some(false);
    }
    let known = facts.instance().filter(|known| known.p2p.is_some())?;
    Some(!known.lacks_p2p())
}

fn has_peers(facts: &Facts) -> bool {
    have_peers(facts) == Some(true)
}

fn has_efa_without_rdma(facts: &Facts) -> bool {
    facts.has_efa() && !facts.has_efa_rdma()
}

fn has_nvls(facts: &Facts) -> bool {
    let multicasts = |known| facts.catalogue.gpu_of(known).and_then(|gpu| gpu.nvls_multicast);
    facts.instance().is_some_and(|known| multicasts(known) == Some(true) && known.has_nvlink())
}

/// Whether host memory is the only path between GPUs.
fn lacks_peers(facts: &Facts) -> bool {
    facts.gpu_count() > 1 && have_peers(facts) == Some(false)
}

const PATHS: &str = "NCCL's src/graph/paths.cc";
const EFA: &str = "libfabric, prov/efa/src/efa_env.c";

/// Values that switch paths off, or make them slow, on purpose or by inheritance.
const SWITCHES: &[Switch] = &[
    Switch {
        name: "NCCL_P2P_DISABLE",
        is_off: |value| value == "1",
        matters: has_peers,
        is_problem: true,
        means: "NCCL does not let GPUs reach each other: it goes through host memory (SHM)",
        source: PATHS,
    },
    Switch {
        name: "NCCL_P2P_LEVEL",
        is_off: |value| value == "LOC" || value == "0",
        matters: has_peers,
        is_problem: true,
        means: "NCCL does not let GPUs reach each other: it goes through host memory (SHM)",
        source: PATHS,
    },
    Switch {
        name: "NCCL_SHM_DISABLE",
        is_off: |value| value == "1",
        matters: lacks_peers,
        is_problem: true,
        means: "GPUs here have no peer access, so host memory is the way between them: without it \
                NCCL goes over the network, to the same host",
        source: "NCCL's src/transport/shm.cc",
    },
    Switch {
        name: "NCCL_CUMEM_ENABLE",
        is_off: |value| value == "0",
        matters: has_peers,
        is_problem: false,
        means: "NCCL uses CUDA IPC between processes, and neither NVLS nor NVLink between hosts",
        source: "NCCL's src/allocator.cc",
    },
    Switch {
        name: "NCCL_NVLS_ENABLE",
        is_off: |value| value == "0",
        matters: has_nvls,
        is_problem: false,
        means: "the NVSwitch does not reduce: all_reduce is some 30 % slower",
        source: "NVIDIA/nccl issue 1442",
    },
    Switch {
        name: "NCCL_MNNVL_ENABLE",
        is_off: |value| value == "0",
        matters: |facts| !facts.host.imex_channels.is_empty(),
        is_problem: false,
        means: "NVLink between hosts is not used",
        source: "NCCL's src/mnnvl.cc",
    },
    Switch {
        name: "NCCL_NET",
        is_off: |value| value.eq_ignore_ascii_case("socket"),
        matters: Facts::has_rdma_devices,
        is_problem: true,
        means: "NCCL uses TCP sockets between hosts, not the RDMA devices that are here",
        source: "NCCL's guide, NCCL_NET",
    },
    Switch {
        name: "NCCL_NET_PLUGIN",
        is_off: |value| value.eq_ignore_ascii_case("none"),
        matters: Facts::has_efa,
        is_problem: true,
        means: "NCCL does not load the plugin for EFA: it uses TCP sockets between hosts",
        source: "NCCL's guide, NCCL_NET_PLUGIN",
    },
    Switch {
        name: "NCCL_NET_GDR_LEVEL",
        is_off: |value| value == "LOC" || value == "0",
        matters: Facts::has_rdma_devices,
        is_problem: true,
        means: "what goes to other hosts is copied through host memory: no GPUDirect RDMA",
        source: PATHS,
    },
    Switch {
        name: "FI_PROVIDER",
        is_off: |value| {
            let named = value.trim_start_matches('^').split(',').any(|name| name.contains("efa"));
            value.starts_with('^') == named && !value.is_empty()
        },
        matters: Facts::has_efa,
        is_problem: true,
        means: "libfabric does not offer EFA: g2g's rdma and NCCL's plugin go over what is left, \
                or do not start",
        source: "fi_fabric(7), fi_getinfo(3)",
    },
    Switch {
        name: "FI_EFA_USE_DEVICE_RDMA",
        is_off: is_yes,
        matters: has_efa_without_rdma,
        is_problem: true,
        means: "EFA of this instance type has no RDMA, and libfabric aborts the program",
        source: EFA,
    },
    Switch {
        name: "FI_EFA_USE_DEVICE_RDMA",
        is_off: is_no,
        matters: Facts::has_efa_rdma,
        is_problem: true,
        means: "libfabric makes reads and writes of messages instead of EFA's RDMA",
        source: EFA,
    },
    Switch {
        name: UNSOLICITED,
        is_off: is_no,
        matters: Facts::has_efa_rdma,
        is_problem: true,
        means: "writes that are announced wait for receives that nobody posts: g2g's rdma does not \
                measure over efa then",
        source: "fi_efa(7); libfabric, prov/efa/src/efa_base_ep.c",
    },
    Switch {
        name: "FI_HMEM_DISABLE_P2P",
        is_off: is_yes,
        matters: Facts::has_rdma_devices,
        is_problem: true,
        means: "libfabric copies data of GPUs through host memory: no GPUDirect RDMA",
        source: "fi_hmem, fabric(7)",
    },
    Switch {
        name: "FI_EFA_IFACE",
        is_off: |value| !value.is_empty() && !value.eq_ignore_ascii_case("all"),
        matters: Facts::has_efa,
        is_problem: false,
        means: "libfabric uses only the interfaces named there",
        source: EFA,
    },
    Switch {
        name: "OFI_NCCL_DISABLE_DMABUF",
        is_off: is_yes,
        matters: |facts| facts.has_efa() && facts.gpu_count() > 0,
        is_problem: false,
        means: "AWS's plugin registers memory of GPUs through nvidia_peermem only",
        source: "aws-ofi-nccl, include/nccl_ofi_param.h",
    },
    Switch {
        name: "OFI_NCCL_PROTOCOL",
        is_off: |value| value.eq_ignore_ascii_case("sendrecv"),
        matters: |facts| {
            facts.instance().is_some_and(|known| known.efa_rdma_write == Some(true))
                && facts.has_efa()
        },
        is_problem: false,
        means: "AWS's plugin does not spread messages over several interfaces of a GPU",
        source: "aws-ofi-nccl, src/platform-aws.cpp",
    },
];

/// The paths that are switched off, and the settings that do it.
fn off(facts: &Facts) -> impl Iterator<Item = (&Switch, &Setting)> {
    SWITCHES.iter().filter_map(|switch| {
        let setting = facts.setting(switch.name)?;
        let is_it = (switch.is_off)(setting.value.trim()) && (switch.matters)(facts);
        is_it.then_some((switch, setting))
    })
}

pub(super) fn paths(facts: &Facts) -> Vec<Finding> {
    let found: Vec<Finding> = off(facts)
        .map(|(Switch { is_problem, means, source, .. }, setting)| {
            let verdict = if *is_problem { Finding::problem } else { Finding::note };
            verdict(format!("{setting} is set"))
                .with(Advice { means, source, ..Advice::default() })
                .remedy(format!("unset {}, where that was not the intention", setting.name))
        })
        .collect();
    if found.is_empty() { vec![Finding::ok("no variable switches a path off")] } else { found }
}

pub(super) fn lint(facts: &Facts) -> Vec<Finding> {
    // `paths` is more precise about these.
    let is_told = |setting: &Setting| off(facts).any(|(_, other)| other.name == setting.name);
    let source = "the catalogue of NCCL's variables, by NCCL's source";
    let found: Vec<Finding> = findings(&facts.settings, facts.nccl.as_ref())
        .into_iter()
        .filter(|(setting, _)| !is_told(setting))
        .map(|(_, found)| {
            let verdict = match found.gravity {
                Gravity::Wrong => Finding::problem,
                Gravity::Doubtful | Gravity::Unknown => Finding::note,
            };
            verdict(found.sentence).with(Advice { source, ..Advice::default() })
        })
        .collect();
    let number = facts.settings.len();
    if found.is_empty() && number > 0 {
        let variables = count(number, "variable");
        return vec![Finding::ok(format!("{variables} for NCCL and libfabric do what they say"))];
    }
    found
}

/// A variable of CUDA, the values that do harm, and what they do.
struct Harm {
    names: &'static [&'static str],
    is_harmful: fn(&str) -> bool,
    advice: Advice,
}

const ENVIRONMENT: &str = "CUDA programming guide, environment variables";

const HARMS: [Harm; 3] = [
    Harm {
        names: &["CUDA_LAUNCH_BLOCKING"],
        is_harmful: |value| value != "0",
        advice: Advice {
            means: "every kernel is waited for when it is launched: nothing overlaps, all is slow",
            remedy: "unset CUDA_LAUNCH_BLOCKING",
            source: ENVIRONMENT,
        },
    },
    Harm {
        names: &["CUDA_DEVICE_MAX_CONNECTIONS"],
        is_harmful: |value| value == "1",
        advice: Advice {
            means: "all streams of a GPU share one queue: work of one can wait for another",
            remedy: "unset it, unless the program asks for it, as Megatron does",
            source: ENVIRONMENT,
        },
    },
    Harm {
        names: &["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"],
        is_harmful: |_| true,
        advice: Advice {
            means: "a profiler's library is loaded into each program and can make launches wait \
                    for their kernels; g2g refuses to measure",
            remedy: "run without the profiler",
            source: "CUPTI documentation",
        },
    },
];

pub(super) fn cuda(facts: &Facts) -> Vec<Finding> {
    if facts.gpu_count() == 0 {
        return Vec::new();
    }
    let value = |name: &str| Some(facts.variables.get(name)?.trim()).filter(|v| !v.is_empty());
    let harms = HARMS.iter().flat_map(|harm| harm.names.iter().map(move |name| (*name, harm)));
    let found = harms.filter_map(|(name, harm)| {
        let value = value(name).filter(|value| (harm.is_harmful)(value))?;
        Some(Finding::problem(format!("{name}={value} is set")).with(harm.advice))
    });
    let found: Vec<Finding> = found.collect();
    if found.is_empty() {
        return vec![Finding::ok("no variable of CUDA slows it down")];
    }
    found
}
