//! What a message of NCCL says.
//!
//! The forms are those of the format strings in NVIDIA/nccl, v2.18.6-1 to v2.30.7-1, and in
//! aws/aws-ofi-nccl, v1.6.0 to 2daf7d30. One set of expressions finds the form in a single pass,
//! and the expression of that form alone then takes the message apart.

use std::sync::LazyLock;

use regex::{Captures, Regex, RegexSet};

use super::model::{ChannelCounts, End, P2pKind, Transport};

/// A message that is understood.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fact {
    /// A channel between two ranks.
    Channel(Channel),
    /// A channel of a ring, and its ranks in order.
    Ring {
        channel: u32,
        ranks: Vec<u32>,
    },
    Trees,
    Init(Init),
    Layout {
        pointer: u64,
        rank: u32,
        ranks: u32,
        nodes: u32,
        local_ranks: u32,
        local_rank: u32,
        mnnvl: bool,
    },
    Counts(ChannelCounts),
    AllDirect(bool),
    RingsUse {
        pxn: bool,
        gpudirect: bool,
    },
    NvlsSupport {
        is_available: bool,
    },
    /// Buffers of NVLink SHARP; of the communicator at this address where the line names it.
    Nvls {
        pointer: Option<u64>,
    },
    Choice {
        function: Option<String>,
        size_bytes: u64,
        algorithm: String,
        protocol: String,
        channels: Option<(u32, u32)>,
    },
    Graph {
        pattern: String,
        channels: u32,
        gb_s_model: (f64, f64),
        paths: (String, String),
    },
    System {
        gb_s: (f64, f64),
    },
    Clique {
        id: String,
        ranks: u32,
    },
    FabricState(u32),
    Version(String),
    Driver(String),
    Network(String),
    DmaBuf,
    Confidential(bool),
    Variable {
        name: String,
        value: String,
        by_plugin: bool,
    },
    Plugin(PluginFact),
}

/// Two ranks and what lies between them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Channel {
    pub channel: u32,
    pub source: u32,
    pub target: Option<u32>,
    /// The driver's numbers of their GPUs.
    pub gpus: Option<(u32, u32)>,
    pub end: Option<End>,
    pub transport: Transport,
}

/// A rank begins to be one of a communicator, or has become it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Init {
    pub pointer: u64,
    pub rank: u32,
    pub ranks: u32,
    pub cuda_device: u32,
    pub nvml_device: Option<u32>,
    pub bus_id: String,
    pub id: Option<String>,
    /// The address of the communicator that it is a part of, and how it was cut out.
    pub parent: Option<(u64, String)>,
    pub is_complete: bool,
}

/// A sentence of aws-ofi-nccl.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PluginFact {
    Version(String),
    Libfabric(String),
    Platform(String),
    Protocol { name: String, set_by: Option<String> },
    Provider { name: String, fabric: Option<String>, nics: u32 },
    DmaBuf(String),
    ForcesSimple(String),
    DisablesNvls(String),
    LacksGpudirect(String),
}

type Read = fn(&Captures) -> Option<Fact>;

/// Ends a message of a channel: what goes on is cut or garbled and proves nothing.
const END: &str = r"\s*$";

/// Two ranks with the driver's numbers of their GPUs; 2.18 to 2.30 write them alike.
const PAIR: &str = r"([0-9]+)\[([0-9a-f]+)\] -> ([0-9]+)\[([0-9a-f]+)\]";

/// The forms, and what reads each.
static FORMS: LazyLock<Vec<(String, Read)>> = LazyLock::new(|| {
    let channel = format!(r"^Channel ([0-9]+)(?:/[0-9]+)? : {PAIR}");
    let comm = r"comm (?:0x)?([0-9a-f]+) rank ([0-9]+)";
    let of_peer = r"via P2P/(direct pointer|CUMEM|MNNVL|IPC|indirect/([0-9]+)\[[0-9a-f]+\])";
    let net = r"\[(send|receive)\] via NET/([^/]+)/([0-9]+)(?:\(([0-9]+)\))?";
    let gdr = r"(/GDRDMA)?(\(PCI\))?";
    let split = r"(?: parent (?:0x)?([0-9a-f]+)(?: (?:splitCount|childCount) ([0-9]+))? color (-?[0-9]+) key -?[0-9]+)?";
    let forms: [(String, Read); 36] = [
        (format!(r"{channel} {of_peer}(/read)?(/CE)?{END}"), p2p),
        (format!(r"{channel} via SHM/(direct|CE)(?:/(direct|CE))?{END}"), shm),
        (format!(r"{channel} {net}{gdr}(/Shared)?{END}"), network),
        (
            format!(
                r"^CollNet ([0-9]+)/[0-9]+ ?: ([0-9]+) \[(send|receive)\] via COLLNET/([^/]+)/([0-9]+){gdr}{END}"
            ),
            collnet,
        ),
        (format!(r"^Channel ([0-9]+)/[0-9]+ :((?: +[0-9]+)+){END}"), ring),
        (r"^Trees \[0\]".to_owned(), |_| Some(Fact::Trees)),
        (
            format!(
                r"^(?:\[Rank [0-9]+\] )?(?:ncclComm[A-Za-z]+ )?{comm} nranks ([0-9]+) cudaDev ([0-9]+)(?: nvmlDev ([0-9]+))? busId ([0-9a-f]+){split}(?: commId (0x[0-9a-f]+))? ?- Init (START|COMPLETE)"
            ),
            init,
        ),
        (
            format!(
                r"^{comm} nRanks ([0-9]+) nNodes ([0-9]+) localRanks ([0-9]+) localRank ([0-9]+) MNNVL ([0-9])"
            ),
            layout,
        ),
        (
            r"^([0-9]+) coll channels, (?:([0-9]+) collnet channels, )?([0-9]+) nvls channels, ([0-9]+) p2p channels, ([0-9]+) p2p channels per peer"
                .to_owned(),
            counts,
        ),
        (
            r"^Check P2P Type (?:isAllDirectP2p|intraNodeP2pSupport) ([0-9]+) directMode".to_owned(),
            |c| Some(Fact::AllDirect(flag(c, 1))),
        ),
        (r"^Connected all rings, use ring PXN ([0-9]+) GDR ([0-9]+)".to_owned(), |c| {
            Some(Fact::RingsUse { pxn: flag(c, 1), gpudirect: flag(c, 2) })
        }),
        (r"^NVLS multicast support is (not )?available on dev".to_owned(), |c| {
            Some(Fact::NvlsSupport { is_available: c.get(1).is_none() })
        }),
        (r"^NVLS comm (?:0x)?([0-9a-f]+) headRank -?[0-9]+ nHeads [0-9]+".to_owned(), |c| {
            Some(Fact::Nvls { pointer: hexadecimal(c, 1) })
        }),
        (r"^Connected NVLS tree".to_owned(), |_| Some(Fact::Nvls { pointer: None })),
        (
            r"^(?:([A-Za-z0-9_]+): )?([0-9]+) Bytes -> Algo ([A-Za-z0-9_]+) proto ([A-Za-z0-9_]+)(?: channel\{Lo\.\.Hi\}=\{([0-9]+)\.\.([0-9]+)\}| time [0-9.]+)"
                .to_owned(),
            choice,
        ),
        (
            r"^Pattern ([0-9]+), crossNic [0-9]+, nChannels ([0-9]+), bw ([0-9.]+)/([0-9.]+), type ([A-Za-z0-9_]+)/([A-Za-z0-9_]+)"
                .to_owned(),
            graph,
        ),
        (r"^=== System : maxBw ([0-9.]+) totalBw ([0-9.]+) ===".to_owned(), |c| {
            Some(Fact::System { gb_s: (rate(c, 1)?, rate(c, 2)?) })
        }),
        (r"^MNNVL [0-9]+ cliqueId ([0-9a-fx]+) cliqueSize ([0-9]+) cliqueRank".to_owned(), |c| {
            Some(Fact::Clique { id: word(c, 1), ranks: number(c, 2)? })
        }),
        (
            r"^MNNVL busId 0x[0-9a-f]+ fabric UUID [0-9a-f.]+ cliqueId 0x[0-9a-f]+ state ([0-9]+) healthMask"
                .to_owned(),
            |c| Some(Fact::FabricState(number(c, 1)?)),
        ),
        (r"^NCCL version ([0-9]+\.[0-9]+\.[0-9]+[A-Za-z0-9.+_-]*)".to_owned(), |c| {
            Some(Fact::Version(word(c, 1)))
        }),
        (r"^cudaDriverVersion ([0-9]+)".to_owned(), driver),
        (r"^Using network (.+?)\s*$".to_owned(), |c| Some(Fact::Network(word(c, 1)))),
        (r"^DMA-BUF is available on GPU device".to_owned(), |_| Some(Fact::DmaBuf)),
        (r"^CC (On|Off), workFifoBytes".to_owned(), |c| Some(Fact::Confidential(&c[1] == "On"))),
        (r"^(NCCL_[A-Z0-9_]+) set by environment to (.*?)\s*$".to_owned(), variable),
        (
            r"^NET/OFI Adding ([A-Z][A-Z0-9_]+)=(.*) to environment".to_owned(),
            plugin_variable,
        ),
        (r"^NET/OFI Running on (\S+) platform, (?:topology|NCCL_TOPO|Setting)".to_owned(), |c| {
            of_plugin(PluginFact::Platform(word(c, 1)))
        }),
        (
            r"^NET/OFI Setting ([A-Z][A-Z0-9_]+) environment variable to (.*?)\s*$"
                .to_owned(),
            plugin_variable,
        ),
        (r"^NET/OFI Initializing aws-ofi-nccl (\S+)".to_owned(), |c| {
            of_plugin(PluginFact::Version(word(c, 1)))
        }),
        (r"^NET/OFI Using Libfabric version ([0-9.]+)".to_owned(), |c| {
            of_plugin(PluginFact::Libfabric(word(c, 1)))
        }),
        (r"^NET/OFI Using transport protocol ([A-Za-z0-9_]+)(?: \((user|platform) set\))?".to_owned(), |c| {
            let set_by = c.get(2).map(|_| word(c, 2));
            of_plugin(PluginFact::Protocol { name: word(c, 1), set_by })
        }),
        (
            r"^NET/OFI Selected [Pp]rovider is ([^\s,]+)(?:, fabric is (\S+))? \(found ([0-9]+) nics\)"
                .to_owned(),
            provider,
        ),
        (r"^NET/OFI Support for DMA-BUF registrations: (true|false)".to_owned(), |c| {
            of_plugin(PluginFact::DmaBuf(word(c, 1)))
        }),
        (r"^NET/OFI Need to force simple protocol: (.+?) not supported".to_owned(), |c| {
            of_plugin(PluginFact::ForcesSimple(word(c, 1)))
        }),
        (r"^NET/OFI Disabling NVLS support due to NCCL version ([0-9]+)".to_owned(), |c| {
            of_plugin(PluginFact::DisablesNvls(word(c, 1)))
        }),
        (r"^NET/OFI GDR disabled on GDR-supported instance type (\S+)".to_owned(), |c| {
            of_plugin(PluginFact::LacksGpudirect(word(c, 1)))
        }),
    ];
    forms.into()
});

static SET: LazyLock<RegexSet> = LazyLock::new(|| {
    RegexSet::new(FORMS.iter().map(|(form, _)| form)).expect("a test reads each form")
});

static EACH: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let compiled = FORMS.iter().map(|(form, _)| Regex::new(form));
    compiled.collect::<Result<_, _>>().expect("a test reads each form")
});

/// What `text` says; `None` if it is of no known form, or holds a number that cannot be.
pub(super) fn read(text: &str) -> Option<Fact> {
    let form = SET.matches(text).iter().next()?;
    let captures = EACH.get(form)?.captures(text)?;
    FORMS.get(form).and_then(|(_, read)| read(&captures))
}

fn number<T: std::str::FromStr>(captures: &Captures, group: usize) -> Option<T> {
    captures.get(group)?.as_str().parse().ok()
}

fn rate(captures: &Captures, group: usize) -> Option<f64> {
    number::<f64>(captures, group).filter(|rate| rate.is_finite())
}

fn hexadecimal(captures: &Captures, group: usize) -> Option<u64> {
    u64::from_str_radix(captures.get(group)?.as_str(), 16).ok()
}

/// Letters of a word that are kept.
const WORD_LETTERS_MAX: usize = 300;

fn word(captures: &Captures, group: usize) -> String {
    let word = captures.get(group).map_or("", |group| group.as_str());
    word.chars().take(WORD_LETTERS_MAX).collect()
}

fn flag(captures: &Captures, group: usize) -> bool {
    captures.get(group).is_some_and(|group| group.as_str().bytes().any(|digit| digit != b'0'))
}

fn has(captures: &Captures, group: usize) -> bool {
    captures.get(group).is_some()
}

#[expect(clippy::unnecessary_wraps, reason = "the form that readers of messages have")]
const fn of_plugin(fact: PluginFact) -> Option<Fact> {
    Some(Fact::Plugin(fact))
}

/// A channel with its two ranks, which are the groups 1 to 5.
fn between(captures: &Captures, end: Option<End>, transport: Transport) -> Option<Fact> {
    Some(Fact::Channel(Channel {
        channel: number(captures, 1)?,
        source: number(captures, 2)?,
        target: Some(number(captures, 4)?),
        gpus: number(captures, 3).zip(number(captures, 5)),
        end,
        transport,
    }))
}

fn p2p(captures: &Captures) -> Option<Fact> {
    let kind = match &captures[6] {
        "direct pointer" => P2pKind::DirectPointer,
        "CUMEM" => P2pKind::CuMem,
        "MNNVL" => P2pKind::Mnnvl,
        "IPC" => P2pKind::Ipc,
        _ => P2pKind::Indirect,
    };
    let through = number(captures, 7);
    let (read, copy_engine) = (has(captures, 8), has(captures, 9));
    between(captures, None, Transport::P2p { kind, through, read, copy_engine })
}

fn shm(captures: &Captures) -> Option<Fact> {
    let is_ce = |group| captures.get(group).is_some_and(|group| group.as_str() == "CE");
    let transport = Transport::Shm { source_copy_engine: is_ce(6), target_copy_engine: is_ce(7) };
    between(captures, None, transport)
}

fn end(word: &str) -> End {
    if word == "send" { End::Send } else { End::Receive }
}

fn network(captures: &Captures) -> Option<Fact> {
    let transport = Transport::Net {
        plugin: word(captures, 7),
        device: number(captures, 8)?,
        proxy: number(captures, 9),
        gpudirect: has(captures, 10),
        forced_pci: has(captures, 11),
        shared: has(captures, 12),
    };
    between(captures, Some(end(&captures[6])), transport)
}

fn collnet(captures: &Captures) -> Option<Fact> {
    let transport = Transport::CollNet {
        plugin: word(captures, 4),
        device: number(captures, 5)?,
        gpudirect: has(captures, 6),
        forced_pci: has(captures, 7),
    };
    Some(Fact::Channel(Channel {
        channel: number(captures, 1)?,
        source: number(captures, 2)?,
        target: None,
        gpus: None,
        end: Some(end(&captures[3])),
        transport,
    }))
}

fn ring(captures: &Captures) -> Option<Fact> {
    let ranks = captures[2].split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    Some(Fact::Ring { channel: number(captures, 1)?, ranks })
}

fn init(captures: &Captures) -> Option<Fact> {
    let parent = hexadecimal(captures, 7).map(|pointer| {
        (pointer, format!("part {} color {}", word(captures, 8), word(captures, 9)))
    });
    let (rank, ranks) = (number(captures, 2)?, number(captures, 3)?);
    (rank < ranks).then_some(())?;
    Some(Fact::Init(Init {
        pointer: hexadecimal(captures, 1)?,
        rank,
        ranks,
        cuda_device: number(captures, 4)?,
        nvml_device: number(captures, 5),
        bus_id: bus_id(hexadecimal(captures, 6)?),
        id: captures.get(10).map(|_| word(captures, 10)),
        parent,
        is_complete: &captures[11] == "COMPLETE",
    }))
}

/// NCCL writes the digits of a PCI address without what parts them (`busIdToInt64`,
/// NVIDIA/nccl, src/misc/utils.cc).
fn bus_id(digits: u64) -> String {
    let (domain, bus) = (digits >> 20, (digits >> 12) & 0xff);
    format!("{domain:04x}:{bus:02x}:{:02x}.{:x}", (digits >> 4) & 0xff, digits & 0xf)
}

fn layout(captures: &Captures) -> Option<Fact> {
    let (rank, ranks) = (number(captures, 2)?, number(captures, 3)?);
    (rank < ranks).then_some(())?;
    Some(Fact::Layout {
        pointer: hexadecimal(captures, 1)?,
        rank,
        ranks,
        nodes: number(captures, 4)?,
        local_ranks: number(captures, 5)?,
        local_rank: number(captures, 6)?,
        mnnvl: flag(captures, 7),
    })
}

fn counts(captures: &Captures) -> Option<Fact> {
    Some(Fact::Counts(ChannelCounts {
        collectives: number(captures, 1)?,
        collnet: number(captures, 2).unwrap_or(0),
        nvls: number(captures, 3)?,
        p2p: number(captures, 4)?,
        p2p_per_peer: number(captures, 5)?,
    }))
}

/// NCCL 2.21 to 2.23 write numbers (NVIDIA/nccl v2.23.4-1, src/include/nccl_common.h).
fn choice(captures: &Captures) -> Option<Fact> {
    let algorithm = match &captures[3] {
        "0" => "TREE",
        "1" => "RING",
        "2" => "COLLNET_DIRECT",
        "3" => "COLLNET_CHAIN",
        "4" => "NVLS",
        "5" => "NVLS_TREE",
        "6" => "PAT",
        name => name,
    };
    let protocol = match &captures[4] {
        "0" => "LL",
        "1" => "LL128",
        "2" => "SIMPLE",
        name => name,
    };
    let short = |name: &str| name.chars().take(40).collect::<String>();
    Some(Fact::Choice {
        function: captures.get(1).map(|group| short(group.as_str())),
        size_bytes: number(captures, 2)?,
        algorithm: short(algorithm),
        protocol: short(protocol),
        channels: number(captures, 5).zip(number(captures, 6)),
    })
}

/// The numbers are those of NVIDIA/nccl, src/include/graph.h.
fn graph(captures: &Captures) -> Option<Fact> {
    let pattern = match &captures[1] {
        "1" => "balanced tree",
        "2" => "split tree",
        "3" => "tree",
        "4" => "ring",
        "5" => "nvls",
        "6" => "collnet direct",
        number => number,
    };
    let short = |group| word(captures, group).chars().take(16).collect::<String>();
    Some(Fact::Graph {
        pattern: pattern.chars().take(16).collect(),
        channels: number(captures, 2)?,
        gb_s_model: (rate(captures, 3)?, rate(captures, 4)?),
        paths: (short(5), short(6)),
    })
}

fn driver(captures: &Captures) -> Option<Fact> {
    let version: u32 = number(captures, 1)?;
    // CUDA's way to write it: 1000 × major + 10 × minor.
    Some(Fact::Driver(format!("{}.{}", version / 1000, version % 1000 / 10)))
}

fn variable(captures: &Captures) -> Option<Fact> {
    let value = word(captures, 2);
    // NCCL ends the sentence with a full stop where the value is a number.
    let number = value.strip_suffix('.').filter(|number| number.parse::<i64>().is_ok());
    let value = number.map_or(value.clone(), str::to_owned);
    Some(Fact::Variable { name: word(captures, 1), value, by_plugin: false })
}

fn plugin_variable(captures: &Captures) -> Option<Fact> {
    let (name, value) = (word(captures, 1), word(captures, 2));
    Some(Fact::Variable { name, value, by_plugin: true })
}

fn provider(captures: &Captures) -> Option<Fact> {
    let fabric = captures.get(2).map(|_| word(captures, 2));
    of_plugin(PluginFact::Provider { name: word(captures, 1), fabric, nics: number(captures, 3)? })
}
