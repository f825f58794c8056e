//! What a message of NCCL says.
//!
//! The forms are those of the format strings in NVIDIA/nccl, v2.18.6-1 to v2.30.7-1, and in
//! aws/aws-ofi-nccl, v1.6.0 to 2daf7d30. One set of expressions finds the form in a single pass,
//! and the expression of that form alone then takes the message apart.

use std::sync::LazyLock;

use regex::{Captures, Regex, RegexSet};

use super::model::{
    ChannelCounts, Choice, Communicator, End, Graph, Link, Log, NvlsSupport, Origin, P2pKind,
    Place, Plugin, RingsUse, Told, Transport, Variable,
};

/// A message that is understood.
pub(super) enum Fact<'t> {
    /// A channel between two ranks.
    Channel(Link),
    /// A channel of a ring, and its ranks in order.
    Ring { channel: u32, ranks: Vec<u32> },
    /// A rank begins to be one of a communicator, or has become it.
    Init(Init),
    /// Where the ranks of a communicator are.
    Layout(Layout),
    /// What was chosen for an operation.
    Choice(Choice),
    /// What the search has found.
    Graph(Graph),
    /// Buffers of NVLink SHARP; of the communicator at this address where the line names it.
    Nvls { pointer: Option<u64> },
    /// A variable of the environment.
    Variable(Variable),
    /// What a communicator has as a whole.
    Communicator(Captures<'t>, Add<Communicator>),
    /// What belongs to no communicator.
    Log(Captures<'t>, Add<Log>),
    /// A word of aws-ofi-nccl.
    Plugin(Told, Slot),
}

/// Adds what a message says.
type Add<T> = fn(&mut T, &Captures, Place);

/// Where a word of aws-ofi-nccl is kept.
type Slot = fn(&mut Plugin) -> &mut Option<Told>;

/// A rank of a communicator, which has this address in the rank's process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    pub pointer: u64,
    pub rank: u32,
    pub ranks: u32,
}

/// A rank begins to be one of a communicator, or has become it.
pub(super) struct Init {
    pub seat: Seat,
    pub cuda_device: u32,
    pub nvml_device: Option<u32>,
    pub bus_id: String,
    pub id: Option<String>,
    /// The address of the communicator that it is a part of, and how it was cut out.
    pub parent: Option<(u64, String)>,
    pub is_complete: bool,
}

/// Where a rank of a communicator is.
pub(super) struct Layout {
    pub seat: Seat,
    pub nodes: u32,
    pub local_ranks: u32,
    pub local_rank: u32,
    pub mnnvl: bool,
}

/// What a message of a form adds.
enum Form {
    /// A fact; `None`: it holds a number that cannot be.
    Read(fn(&Captures, Place) -> Option<Fact<'static>>),
    OfCommunicator(Add<Communicator>),
    OfLog(Add<Log>),
    /// The word of the first group.
    OfPlugin(Slot),
}

use Form::{OfCommunicator, OfLog, OfPlugin, Read};

/// Ends the form of a channel: a line with more text is garbled and proves nothing.
const END: &str = r"\s*$";

/// Two ranks with the driver's numbers of their GPUs; 2.18 to 2.30 write them alike.
const PAIR: &str = r"([0-9]+)\[([0-9a-f]+)\] -> ([0-9]+)\[([0-9a-f]+)\]";

/// The forms, and what each adds.
static FORMS: LazyLock<Vec<(String, Form)>> = LazyLock::new(|| {
    let channel = format!(r"^Channel ([0-9]+)(?:/[0-9]+)? : {PAIR}");
    let comm = r"comm (?:0x)?([0-9a-f]+) rank ([0-9]+)";
    let of_peer = r"via P2P/(direct pointer|CUMEM|MNNVL|IPC|indirect/([0-9]+)\[[0-9a-f]+\])";
    let net = r"\[(send|receive)\] via NET/([^/]+)/([0-9]+)(?:\(([0-9]+)\))?";
    let gdr = r"(/GDRDMA)?(\(PCI\))?";
    let split = r"(?: parent (?:0x)?([0-9a-f]+)(?: (?:splitCount|childCount) ([0-9]+))? color (-?[0-9]+) key -?[0-9]+)?";
    let composed = [
        (format!(r"{channel} {of_peer}(/read)?(/CE)?{END}"), Read(p2p)),
        (format!(r"{channel} via SHM/(direct|CE)(?:/(direct|CE))?{END}"), Read(shm)),
        (format!(r"{channel} {net}{gdr}(/Shared)?{END}"), Read(network)),
        (
            format!(
                r"^CollNet ([0-9]+)/[0-9]+ ?: ([0-9]+) \[(send|receive)\] via COLLNET/([^/]+)/([0-9]+){gdr}{END}"
            ),
            Read(collnet),
        ),
        (format!(r"^Channel ([0-9]+)/[0-9]+ :((?: +[0-9]+)+){END}"), Read(ring)),
        (
            format!(
                r"^(?:\[Rank [0-9]+\] )?(?:ncclComm[A-Za-z]+ )?{comm} nranks ([0-9]+) cudaDev ([0-9]+)(?: nvmlDev ([0-9]+))? busId ([0-9a-f]+){split}(?: commId (0x[0-9a-f]+))? ?- Init (START|COMPLETE)"
            ),
            Read(init),
        ),
        (
            format!(
                r"^{comm} nRanks ([0-9]+) nNodes ([0-9]+) localRanks ([0-9]+) localRank ([0-9]+) MNNVL ([0-9])"
            ),
            Read(layout),
        ),
    ];
    let plain = [
        (r"^Trees \[0\]", OfCommunicator(|known, _, _| known.has_trees = true)),
        (
            r"^([0-9]+) coll channels, (?:([0-9]+) collnet channels, )?([0-9]+) nvls channels, ([0-9]+) p2p channels, ([0-9]+) p2p channels per peer",
            OfCommunicator(|known, c, _| first(&mut known.channels, counts(c))),
        ),
        (
            r"^Check P2P Type (?:isAllDirectP2p|intraNodeP2pSupport) ([0-9]+) directMode",
            OfCommunicator(|known, c, _| first(&mut known.all_direct, Some(flag(c, 1)))),
        ),
        (
            r"^Connected all rings, use ring PXN ([0-9]+) GDR ([0-9]+)",
            OfCommunicator(|known, c, at| {
                let rings = RingsUse { pxn: flag(c, 1), gpudirect: flag(c, 2), at };
                first(&mut known.rings_use, Some(rings));
            }),
        ),
        (r"^NVLS multicast support is (not )?available on dev", OfLog(nvls_support)),
        (
            r"^NVLS comm (?:0x)?([0-9a-f]+) headRank -?[0-9]+ nHeads [0-9]+",
            Read(|c, _| Some(Fact::Nvls { pointer: hexadecimal(c, 1) })),
        ),
        (r"^Connected NVLS tree", Read(|_, _| Some(Fact::Nvls { pointer: None }))),
        (
            r"^(?:([A-Za-z0-9_]+): )?([0-9]+) Bytes -> Algo ([A-Za-z0-9_]+) proto ([A-Za-z0-9_]+)(?: channel\{Lo\.\.Hi\}=\{([0-9]+)\.\.([0-9]+)\}| time [0-9.]+)",
            Read(choice),
        ),
        (
            r"^Pattern ([0-9]+), crossNic [0-9]+, nChannels ([0-9]+), bw ([0-9.]+)/([0-9.]+), type ([A-Za-z0-9_]+)/([A-Za-z0-9_]+)",
            Read(graph),
        ),
        (
            r"^=== System : maxBw ([0-9.]+) totalBw ([0-9.]+) ===",
            OfCommunicator(|known, c, _| {
                first(&mut known.gb_s_system, rate(c, 1).zip(rate(c, 2)));
            }),
        ),
        (
            r"^MNNVL [0-9]+ cliqueId ([0-9a-fx]+) cliqueSize ([0-9]+) cliqueRank",
            OfCommunicator(|known, c, _| {
                first(&mut known.clique, number(c, 2).map(|ranks| (word(c, 1), ranks)));
            }),
        ),
        (
            r"^MNNVL busId 0x[0-9a-f]+ fabric UUID [0-9a-f.]+ cliqueId 0x[0-9a-f]+ state ([0-9]+) healthMask",
            OfLog(fabric_state),
        ),
        (
            r"^NCCL version ([0-9]+\.[0-9]+\.[0-9]+[A-Za-z0-9.+_-]*)",
            OfLog(|log, c, at| told(&mut log.versions, word(c, 1), at)),
        ),
        (r"^cudaDriverVersion ([0-9]+)", OfLog(driver)),
        (r"^Using network (.+?)\s*$", OfLog(|log, c, at| told(&mut log.networks, word(c, 1), at))),
        (
            r"^DMA-BUF is available on GPU device",
            OfLog(|log, _, at| first(&mut log.dma_buf_gpus, Some(at))),
        ),
        (
            r"^CC (On|Off), workFifoBytes",
            OfLog(|log, c, at| first(&mut log.confidential, Some((&c[1] == "On", at)))),
        ),
        (r"^(NCCL_[A-Z0-9_]+) set by environment to (.*?)\s*$", Read(variable)),
        (r"^NET/OFI Adding ([A-Z][A-Z0-9_]+)=(.*) to environment", Read(plugin_variable)),
        (
            r"^NET/OFI Running on (\S+) platform, (?:topology|NCCL_TOPO|Setting)",
            OfPlugin(|plugin| &mut plugin.platform),
        ),
        (
            r"^NET/OFI Setting ([A-Z][A-Z0-9_]+) environment variable to (.*?)\s*$",
            Read(plugin_variable),
        ),
        (r"^NET/OFI Initializing aws-ofi-nccl (\S+)", OfPlugin(|plugin| &mut plugin.version)),
        (r"^NET/OFI Using Libfabric version ([0-9.]+)", OfPlugin(|plugin| &mut plugin.libfabric)),
        (
            r"^NET/OFI Using transport protocol ([A-Za-z0-9_]+)(?: \((user|platform) set\))?",
            OfLog(|log, c, at| {
                let plugin = log.plugin.get_or_insert_default();
                first(&mut plugin.protocol, told_word(c, 1, at));
                first(&mut plugin.protocol_set_by, some_word(c, 2));
            }),
        ),
        (
            r"^NET/OFI Selected [Pp]rovider is ([^\s,]+)(?:, fabric is (\S+))? \(found ([0-9]+) nics\)",
            OfLog(provider),
        ),
        (
            r"^NET/OFI Support for DMA-BUF registrations: (true|false)",
            OfPlugin(|plugin| &mut plugin.dma_buf),
        ),
        (
            r"^NET/OFI Need to force simple protocol: (.+?) not supported",
            OfPlugin(|plugin| &mut plugin.forces_simple),
        ),
        (
            r"^NET/OFI Disabling NVLS support due to NCCL version ([0-9]+)",
            OfPlugin(|plugin| &mut plugin.disables_nvls),
        ),
        (
            r"^NET/OFI GDR disabled on GDR-supported instance type (\S+)",
            OfPlugin(|plugin| &mut plugin.lacks_gpudirect),
        ),
    ];
    composed.into_iter().chain(plain.map(|(form, adds)| (form.to_owned(), adds))).collect()
});

static SET: LazyLock<RegexSet> = LazyLock::new(|| {
    RegexSet::new(FORMS.iter().map(|(form, _)| form)).expect("a test reads each form")
});

static EACH: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let compiled = FORMS.iter().map(|(form, _)| Regex::new(form));
    compiled.collect::<Result<_, _>>().expect("a test reads each form")
});

/// What `text` says at this line; `None` if it is of no known form, or holds a number that cannot
/// be.
pub(super) fn read(text: &str, at: Place) -> Option<Fact<'_>> {
    let form = SET.matches(text).iter().next()?;
    let captures = EACH.get(form)?.captures(text)?;
    match FORMS.get(form)?.1 {
        Read(read) => read(&captures, at),
        OfCommunicator(add) => Some(Fact::Communicator(captures, add)),
        OfLog(add) => Some(Fact::Log(captures, add)),
        OfPlugin(slot) => Some(Fact::Plugin(told_word(&captures, 1, at)?, slot)),
    }
}

/// Keeps the first value.
fn first<T>(slot: &mut Option<T>, value: Option<T>) {
    *slot = slot.take().or(value);
}

/// Versions and names that differ between ranks are few; a log of noise has no more.
const TOLD_MAX: usize = 64;

/// Adds a word to those of a list, once.
pub(super) fn told(list: &mut Vec<Told>, value: String, at: Place) {
    if list.len() < TOLD_MAX && list.iter().all(|old| old.value != value) {
        list.push(Told { value, at });
    }
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

fn some_word(captures: &Captures, group: usize) -> Option<String> {
    Some(captures.get(group)?.as_str().chars().take(WORD_LETTERS_MAX).collect())
}

fn word(captures: &Captures, group: usize) -> String {
    some_word(captures, group).unwrap_or_default()
}

fn flag(captures: &Captures, group: usize) -> bool {
    captures.get(group).is_some_and(|group| group.as_str().bytes().any(|digit| digit != b'0'))
}

fn has(captures: &Captures, group: usize) -> bool {
    captures.get(group).is_some()
}

fn told_word(captures: &Captures, group: usize, at: Place) -> Option<Told> {
    Some(Told { value: some_word(captures, group)?, at })
}

/// A channel with its two ranks, which are the groups 1 to 5.
fn between(
    captures: &Captures,
    end: Option<End>,
    transport: Transport,
    at: Place,
) -> Option<Fact<'static>> {
    Some(Fact::Channel(Link {
        source: number(captures, 2)?,
        target: Some(number(captures, 4)?),
        transport,
        end,
        channels: vec![number(captures, 1)?],
        gpus: number(captures, 3).zip(number(captures, 5)),
        is_certain: true,
        first: at,
        last: at,
        lines: 1,
    }))
}

fn p2p(captures: &Captures, at: Place) -> Option<Fact<'static>> {
    let kind: P2pKind = captures[6].split('/').next()?.parse().ok()?;
    let through = number(captures, 7);
    let (read, copy_engine) = (has(captures, 8), has(captures, 9));
    between(captures, None, Transport::P2p { kind, through, read, copy_engine }, at)
}

fn shm(captures: &Captures, at: Place) -> Option<Fact<'static>> {
    let is_ce = |group| captures.get(group).is_some_and(|group| group.as_str() == "CE");
    let transport = Transport::Shm { source_copy_engine: is_ce(6), target_copy_engine: is_ce(7) };
    between(captures, None, transport, at)
}

fn end(word: &str) -> Option<End> {
    Some(if word == "send" { End::Send } else { End::Receive })
}

fn network(captures: &Captures, at: Place) -> Option<Fact<'static>> {
    let transport = Transport::Net {
        plugin: word(captures, 7),
        device: number(captures, 8)?,
        proxy: number(captures, 9),
        gpudirect: has(captures, 10),
        forced_pci: has(captures, 11),
        shared: has(captures, 12),
    };
    between(captures, end(&captures[6]), transport, at)
}

fn collnet(captures: &Captures, at: Place) -> Option<Fact<'static>> {
    Some(Fact::Channel(Link {
        source: number(captures, 2)?,
        target: None,
        transport: Transport::CollNet {
            plugin: word(captures, 4),
            device: number(captures, 5)?,
            gpudirect: has(captures, 6),
            forced_pci: has(captures, 7),
        },
        end: end(&captures[3]),
        channels: vec![number(captures, 1)?],
        gpus: None,
        is_certain: true,
        first: at,
        last: at,
        lines: 1,
    }))
}

fn ring(captures: &Captures, _: Place) -> Option<Fact<'static>> {
    let ranks = captures[2].split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    Some(Fact::Ring { channel: number(captures, 1)?, ranks })
}

/// The seat in the groups 1 to 3.
fn seat(captures: &Captures) -> Option<Seat> {
    let seat = Seat {
        pointer: hexadecimal(captures, 1)?,
        rank: number(captures, 2)?,
        ranks: number(captures, 3)?,
    };
    (seat.rank < seat.ranks).then_some(seat)
}

fn init(captures: &Captures, _: Place) -> Option<Fact<'static>> {
    let parent = hexadecimal(captures, 7).map(|pointer| {
        (pointer, format!("part {} color {}", word(captures, 8), word(captures, 9)))
    });
    Some(Fact::Init(Init {
        seat: seat(captures)?,
        cuda_device: number(captures, 4)?,
        nvml_device: number(captures, 5),
        bus_id: bus_id(hexadecimal(captures, 6)?),
        id: some_word(captures, 10),
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

fn layout(captures: &Captures, _: Place) -> Option<Fact<'static>> {
    Some(Fact::Layout(Layout {
        seat: seat(captures)?,
        nodes: number(captures, 4)?,
        local_ranks: number(captures, 5)?,
        local_rank: number(captures, 6)?,
        mnnvl: flag(captures, 7),
    }))
}

fn counts(captures: &Captures) -> Option<ChannelCounts> {
    Some(ChannelCounts {
        collectives: number(captures, 1)?,
        collnet: number(captures, 2).unwrap_or(0),
        nvls: number(captures, 3)?,
        p2p: number(captures, 4)?,
        p2p_per_peer: number(captures, 5)?,
    })
}

fn nvls_support(log: &mut Log, captures: &Captures, at: Place) {
    let none = NvlsSupport { available: 0, missing: 0, at };
    let support = log.nvls_support.get_or_insert(none);
    let count = if has(captures, 1) { &mut support.missing } else { &mut support.available };
    *count += 1;
}

fn fabric_state(log: &mut Log, captures: &Captures, at: Place) {
    if let Some(state) = number(captures, 1)
        && log.fabric_states.len() < TOLD_MAX
    {
        log.fabric_states.entry(state).or_insert(at);
    }
}

/// The names of numbers, in NVIDIA/nccl v2.23.4-1, src/include/nccl_common.h.
const ALGORITHMS: [&str; 7] =
    ["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"];

const PROTOCOLS: [&str; 3] = ["LL", "LL128", "SIMPLE"];

/// The names of numbers, in NVIDIA/nccl, src/include/graph.h.
const PATTERNS: [&str; 7] =
    ["0", "balanced tree", "split tree", "tree", "ring", "nvls", "collnet direct"];

/// The name of a number; any other word as it is.
fn named<'t>(word: &'t str, names: &[&'static str]) -> &'t str {
    word.parse().ok().and_then(|number: usize| names.get(number).copied()).unwrap_or(word)
}

/// NCCL 2.21 to 2.23 write numbers.
fn choice(captures: &Captures, at: Place) -> Option<Fact<'static>> {
    let short = |name: &str| name.chars().take(40).collect::<String>();
    Some(Fact::Choice(Choice {
        function: captures.get(1).map(|group| short(group.as_str())),
        size_bytes: number(captures, 2)?,
        algorithm: short(named(&captures[3], &ALGORITHMS)),
        protocol: short(named(&captures[4], &PROTOCOLS)),
        channels: number(captures, 5).zip(number(captures, 6)),
        at,
        lines: 1,
    }))
}

fn graph(captures: &Captures, at: Place) -> Option<Fact<'static>> {
    let short = |group| word(captures, group).chars().take(16).collect::<String>();
    Some(Fact::Graph(Graph {
        pattern: named(&captures[1], &PATTERNS).chars().take(16).collect(),
        channels: number(captures, 2)?,
        gb_s_model: (rate(captures, 3)?, rate(captures, 4)?),
        paths: (short(5), short(6)),
        at,
    }))
}

fn driver(log: &mut Log, captures: &Captures, at: Place) {
    if let Some(version) = number::<u32>(captures, 1) {
        // CUDA's way to write it: 1000 × major + 10 × minor.
        told(&mut log.drivers, format!("{}.{}", version / 1000, version % 1000 / 10), at);
    }
}

fn variable(captures: &Captures, at: Place) -> Option<Fact<'static>> {
    let value = word(captures, 2);
    // NCCL ends the sentence with a full stop where the value is a number.
    let number = value.strip_suffix('.').filter(|number| number.parse::<i64>().is_ok());
    let value = number.map_or(value.clone(), str::to_owned);
    let (name, origin) = (word(captures, 1), Origin::Environment);
    Some(Fact::Variable(Variable { name, value, origin, at }))
}

fn plugin_variable(captures: &Captures, at: Place) -> Option<Fact<'static>> {
    let (name, value, origin) = (word(captures, 1), word(captures, 2), Origin::Plugin);
    Some(Fact::Variable(Variable { name, value, origin, at }))
}

fn provider(log: &mut Log, captures: &Captures, at: Place) {
    let Some(nics) = number(captures, 3) else { return };
    let plugin = log.plugin.get_or_insert_default();
    first(&mut plugin.provider, told_word(captures, 1, at));
    first(&mut plugin.fabric, told_word(captures, 2, at));
    first(&mut plugin.nics, Some(nics));
}
