//! What a log says: the types that reading it fills.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

/// A line of one of the files that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The file, by its place in [`Log::files`].
    pub file: u32,
    /// The line, from 1.
    pub line: u64,
}

/// A process that wrote into the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Process {
    /// What NCCL calls its host.
    pub host: String,
    /// Its number on that host.
    pub pid: u64,
}

/// Which end of a connection wrote a line of a network channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The source.
    Send,
    /// The target.
    Receive,
}

/// How a peer's memory is reached; as text, in NCCL's words.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    strum::Display,
    strum::EnumString,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "UPPERCASE")]
pub enum P2pKind {
    /// A pointer within one process.
    #[strum(serialize = "direct pointer")]
    DirectPointer,
    /// Handles of `cuMemCreate` between processes.
    CuMem,
    /// The same, in a communicator that spans the hosts of one NVLink domain.
    Mnnvl,
    /// Handles of CUDA IPC between processes.
    Ipc,
    /// Through a GPU between the two.
    #[strum(serialize = "indirect")]
    Indirect,
}

/// What carries a channel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case", tag = "transport")]
pub enum Transport {
    /// A peer's memory, over NVLink or PCIe: the line does not say which.
    P2p {
        /// How it is reached.
        kind: P2pKind,
        /// The rank in between.
        through: Option<u32>,
        /// The target reads; otherwise the source writes.
        read: bool,
        /// By copy engine.
        copy_engine: bool,
    },
    /// Host memory that two processes share.
    Shm {
        /// The source copies by copy engine.
        source_copy_engine: bool,
        /// The target copies by copy engine.
        target_copy_engine: bool,
    },
    /// The network.
    Net {
        /// NCCL's name of the plugin.
        plugin: String,
        /// The interface, by the plugin's number.
        device: u32,
        /// The rank that sends for the source (PXN).
        proxy: Option<u32>,
        /// The interface reaches the GPU's memory.
        gpudirect: bool,
        /// Over PCIe, though the GPU has a faster link to the host.
        forced_pci: bool,
        /// Buffers shared between channels.
        shared: bool,
    },
    /// A reduction in the network.
    CollNet {
        /// NCCL's name of the plugin.
        plugin: String,
        /// The interface, by the plugin's number.
        device: u32,
        /// The interface reaches the GPU's memory.
        gpudirect: bool,
        /// Over PCIe, though the GPU has a faster link to the host.
        forced_pci: bool,
    },
}

/// NCCL's own words, with one spelling for what versions spell differently.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let if_set = |set: bool, word: &'static str| if set { word } else { "" };
        match self {
            Self::P2p { kind, through, read, copy_engine } => {
                write!(f, "P2P/{kind}")?;
                if let Some(rank) = through {
                    write!(f, "/{rank}")?;
                }
                write!(f, "{}{}", if_set(*read, "/read"), if_set(*copy_engine, "/CE"))
            }
            Self::Shm { source_copy_engine: false, target_copy_engine: false } => {
                write!(f, "SHM/direct")
            }
            Self::Shm { source_copy_engine, target_copy_engine } => {
                let word = |copy_engine: bool| if copy_engine { "CE" } else { "direct" };
                write!(f, "SHM/{}/{}", word(*source_copy_engine), word(*target_copy_engine))
            }
            Self::Net { plugin, device, proxy, gpudirect, forced_pci, shared } => {
                write!(f, "NET/{plugin}/{device}")?;
                if let Some(rank) = proxy {
                    write!(f, "({rank})")?;
                }
                let (gdr, pci) = (if_set(*gpudirect, "/GDRDMA"), if_set(*forced_pci, "(PCI)"));
                write!(f, "{gdr}{pci}{}", if_set(*shared, "/Shared"))
            }
            Self::CollNet { plugin, device, gpudirect, forced_pci } => {
                let (gdr, pci) = (if_set(*gpudirect, "/GDRDMA"), if_set(*forced_pci, "(PCI)"));
                write!(f, "COLLNET/{plugin}/{device}{gdr}{pci}")
            }
        }
    }
}

/// The channels from one rank to another over one transport.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The rank whose data it is.
    pub source: u32,
    /// The rank that gets it; `None` for a reduction in the network.
    pub target: Option<u32>,
    /// What carries it.
    #[serde(flatten)]
    pub transport: Transport,
    /// Which end said so, of a transport where both do.
    pub end: Option<End>,
    /// The channels, each once.
    pub channels: Vec<u32>,
    /// The driver's numbers of the GPUs of source and target (`nvmlDev`).
    pub gpus: Option<(u32, u32)>,
    /// Whether a line can belong to this communicator only. NCCL does not name it; others of the
    /// same process may have the same ranks.
    pub is_certain: bool,
    /// The first line that says so.
    pub first: Place,
    /// The last line that says so.
    pub last: Place,
    /// How many lines do.
    pub lines: u64,
}

/// A rank that a log mentions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Member {
    /// Its process.
    pub process: Process,
    /// CUDA's number of its GPU.
    pub cuda_device: Option<u32>,
    /// The driver's number of its GPU.
    pub nvml_device: Option<u32>,
    /// Where the GPU is on PCIe, as `domain:bus:device.function` in hexadecimal.
    pub bus_id: Option<String>,
    /// Its place among the ranks of its node.
    pub local_rank: Option<u32>,
    /// The ranks of its node.
    pub local_ranks: Option<u32>,
    /// Whether its start is in the log to the end.
    pub is_complete: bool,
    /// The first line that mentions it.
    pub at: Place,
}

/// The channels of a communicator by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChannelCounts {
    /// For collectives.
    pub collectives: u32,
    /// For reductions in the network.
    pub collnet: u32,
    /// For NVLink SHARP.
    pub nvls: u32,
    /// For send and receive.
    pub p2p: u32,
    /// For send and receive, to each peer.
    pub p2p_per_peer: u32,
}

/// What rings use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RingsUse {
    /// Some rank sends through another one's interface.
    pub pxn: bool,
    /// All ranks send and receive by GPUDirect RDMA.
    pub gpudirect: bool,
    /// The line.
    pub at: Place,
}

/// A pattern that NCCL's search has found (`NCCL_DEBUG_SUBSYS=GRAPH`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Graph {
    /// What it is for: `tree`, `ring`, `nvls`, `collnet`, or NCCL's number.
    pub pattern: String,
    /// Its channels.
    pub channels: u32,
    /// GB/s of a channel that NCCL counts on, within a node and between nodes.
    pub gb_s_model: (f64, f64),
    /// The kind of path, within a node and between nodes, such as `NVL` or `PIX`.
    pub paths: (String, String),
    /// The line.
    pub at: Place,
}

/// What NCCL chose for one operation of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The collective; NCCL 2.22 and older do not name it.
    pub function: Option<String>,
    /// Bytes of the operation.
    pub size_bytes: u64,
    /// The algorithm, such as `RING`.
    pub algorithm: String,
    /// The protocol, such as `LL128`.
    pub protocol: String,
    /// First and last channel.
    pub channels: Option<(u32, u32)>,
    /// The first line that says so.
    pub at: Place,
    /// How many lines do.
    pub lines: u64,
}

/// A group of ranks that NCCL joins.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Communicator {
    /// `commId` where NCCL names it; of a part of another, what it was split by.
    pub id: Option<String>,
    /// How many ranks it has.
    pub ranks: Option<u32>,
    /// How many nodes NCCL takes them for.
    pub nodes: Option<u32>,
    /// Whether it spans the hosts of one NVLink domain.
    pub mnnvl: Option<bool>,
    /// The ranks that the log mentions.
    pub members: BTreeMap<u32, Member>,
    /// The hosts' NVLink domain: its part, and how many ranks are in it.
    pub clique: Option<(String, u32)>,
    /// GB/s of the fastest path, and of all paths of a GPU, that NCCL counts on.
    pub gb_s_system: Option<(f64, f64)>,
    /// The channels by use.
    pub channels: Option<ChannelCounts>,
    /// Rings, each as the ranks in their order.
    pub rings: BTreeMap<u32, Vec<u32>>,
    /// Whether lines of trees are there.
    pub has_trees: bool,
    /// Who reaches whom by what.
    pub links: Vec<Link>,
    /// Buffers of NVLink SHARP or its trees were made.
    pub nvls: Option<Place>,
    /// Whether all ranks reach each other's memory directly, as NCCL sees it.
    pub all_direct: Option<bool>,
    /// What the rings of all ranks use, as NCCL says where it has connected them.
    pub rings_use: Option<RingsUse>,
    /// What was chosen for operations.
    pub choices: Vec<Choice>,
    /// What the search has found.
    pub graphs: Vec<Graph>,
    /// The first line that mentions it.
    pub at: Place,
    /// The line with the nodes.
    pub layout_at: Option<Place>,
}

/// What aws-ofi-nccl says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plugin {
    /// Its version.
    pub version: Option<Told>,
    /// The version of libfabric.
    pub libfabric: Option<Told>,
    /// The instance type that it runs on.
    pub platform: Option<Told>,
    /// `SENDRECV` or `RDMA`.
    pub protocol: Option<Told>,
    /// Who set the protocol: `user` or `platform`.
    pub protocol_set_by: Option<String>,
    /// libfabric's provider.
    pub provider: Option<Told>,
    /// libfabric's fabric.
    pub fabric: Option<Told>,
    /// Network interfaces of the process.
    pub nics: Option<u32>,
    /// Whether memory can be registered as dma-buf.
    pub dma_buf: Option<Told>,
    /// What is lacking, so that it forces NCCL's simple protocol.
    pub forces_simple: Option<Told>,
    /// It switched NVLink SHARP off, for this version of NCCL.
    pub disables_nvls: Option<Told>,
    /// GPUDirect RDMA is missing on a machine that has it.
    pub lacks_gpudirect: Option<Told>,
}

/// A word with its line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Told {
    /// The word.
    pub value: String,
    /// The first line that says it.
    pub at: Place,
}

/// A variable that NCCL or its plugin says it has taken from the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Who set it.
    pub origin: Origin,
    /// The first line that says so.
    pub at: Place,
}

/// Who set a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// NCCL found it in the environment.
    Environment,
    /// aws-ofi-nccl put it into the environment.
    Plugin,
    /// Text of another program names it; NCCL says nothing of it.
    OtherText,
}

/// A sentence that says something is wrong, or that a way is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// What kind it is.
    pub kind: WarningKind,
    /// NCCL's words, the first time.
    pub text: String,
    /// The process that wrote them, the first time.
    pub process: Option<Process>,
    /// The first line.
    pub at: Place,
    /// How many lines say it, whatever their numbers.
    pub lines: u64,
}

/// What a warning is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WarningKind {
    /// NVML refuses peer access between GPUs.
    P2pDisabled,
    /// NVML refuses peer access between GPUs that NVLink connects.
    P2pDisabledOnNvLink,
    /// CUDA refuses peer access.
    P2pRefused,
    /// CUDA IPC does not work.
    LegacyIpc,
    /// Two ranks have no way to each other.
    NoTransport,
    /// Shared memory could not be made.
    SharedMemory,
    /// `cuMem` host memory does not work.
    CuMemHost,
    /// A peer has gone away, or a wait was given up.
    Peer,
    /// NVLink SHARP could not be set up.
    Nvls,
    /// A network could not be set up.
    Network,
    /// Versions differ between ranks.
    VersionMismatch,
    /// Ranks share one GPU.
    SameGpu,
    /// CUDA has failed.
    Cuda,
    /// The NVLink domain is there but does not work.
    Mnnvl,
    /// NCCL's own diagnostics have found a fault.
    Diagnosis,
    /// Any other `NCCL WARN`.
    Other,
}

/// Whether NVLink SHARP is there, by GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NvlsSupport {
    /// GPUs that have it.
    pub available: u64,
    /// GPUs that have not.
    pub missing: u64,
    /// The first line that says so.
    pub at: Place,
}

/// All that the files say.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Log {
    /// The files, in the order in which they were read.
    pub files: Vec<String>,
    /// Lines of all files.
    pub lines: u64,
    /// Messages of NCCL in them.
    pub messages: u64,
    /// The versions of NCCL.
    pub versions: Vec<Told>,
    /// The versions of CUDA that drivers offer, as `13.0`.
    pub drivers: Vec<Told>,
    /// The networks, by NCCL's names.
    pub networks: Vec<Told>,
    /// What aws-ofi-nccl says; `None` if it says nothing.
    pub plugin: Option<Plugin>,
    /// Whether GPUs offer dma-buf.
    pub dma_buf_gpus: Option<Place>,
    /// NVLink SHARP.
    pub nvls_support: Option<NvlsSupport>,
    /// States of the NVLink fabric that GPUs report, by NVML's number, with the first line of each.
    pub fabric_states: BTreeMap<u32, Place>,
    /// Confidential computing is on, or off.
    pub confidential: Option<(bool, Place)>,
    /// The communicators, in the order in which they appear.
    pub communicators: Vec<Communicator>,
    /// Variables, in the order in which they appear.
    pub variables: Vec<Variable>,
    /// Warnings, in the order in which they appear.
    pub warnings: Vec<Warning>,
    /// Lines whose end was left unread, since they were too long.
    pub cut_lines: u64,
    /// Facts that were left out, since there were too many.
    pub left_out: u64,
}
