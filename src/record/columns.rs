//! The columns of a row, said once: the header and the cells of run.csv, run.json and its schema,
//! the reader, and the lists of `--resume`, `compare`, `sweep` and Prometheus come from this table.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize, Serializer};
use serde_variant::to_variant_name;

use crate::{
    judge::expected::Verdict as RateVerdict,
    nccl_log::Verdict as PathVerdict,
    plan::{
        Allocator, DataType, Engine, Handle, Issuer, Operation, Pattern, Reduction,
        Registration as NcclRegistration, TransportKind,
    },
    transport::{Completion, GpuPath, Registration, SharedMemory, StoreKind, Wait},
    units::Bytes,
};

/// What became of a case.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Status {
    /// Measured, and every byte was right.
    Ok,
    /// It cannot run here.
    #[default]
    Skipped,
    /// The data was wrong; there is no bandwidth.
    Corrupt,
    /// Something went wrong on the way.
    Failed,
}

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum MemoryKind {
    /// In a GPU.
    Gpu,
    /// In the host.
    Host,
}

/// What a column is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Planned. Tells cases apart, in a run and in a sweep.
    Case,
    /// Planned. Tells cases apart, but not those of a sweep, which may vary it.
    Setting,
    /// Found when the case began. Tells cases apart, in a run and in a sweep.
    Found,
    /// Belongs to the run. Tells cases apart, but not those of a sweep.
    Run,
    /// Planned. Tells no cases apart.
    Planned,
    /// What was measured, and how.
    Measured,
    /// What is known or expected of the path and the rate.
    Evidence,
}

impl Role {
    /// Whether the plan knows it before anything is measured.
    pub const fn is_planned(self) -> bool {
        matches!(self, Self::Case | Self::Setting | Self::Planned)
    }

    /// Whether two rows of one run that differ in it are of two cases.
    pub const fn tells_cases(self) -> bool {
        matches!(self, Self::Case | Self::Setting | Self::Found | Self::Run)
    }

    /// Whether two rows of a sweep that differ in it are of two cases.
    pub const fn tells_cases_of_sweep(self) -> bool {
        matches!(self, Self::Case | Self::Found)
    }
}

/// A column of run.csv.
#[derive(Debug)]
pub struct Column {
    /// Its name, in run.csv and run.json.
    pub name: &'static str,
    /// The unit of its numbers; empty where they have none.
    pub unit: &'static str,
    /// What it says.
    pub about: &'static str,
    /// What it is for.
    pub role: Role,
    /// Whether every row has it.
    pub is_required: bool,
    /// What a row has in it.
    pub cell: fn(&Row) -> Cell<'_>,
}

/// What a row has in a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    /// Nothing.
    Empty,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Whole(u64),
    /// Any other number.
    Number(f64),
    /// A name or a sentence.
    Text(&'a str),
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => Ok(()),
            Self::Bool(value) => value.fmt(f),
            Self::Whole(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// As run.csv has it: no text holds a comma, a quote or a line break, so none needs quotes.
impl Serialize for Cell<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Empty => serializer.serialize_none(),
            Self::Bool(value) => serializer.serialize_bool(value),
            Self::Whole(value) => serializer.serialize_u64(value),
            Self::Number(value) => serializer.serialize_f64(value),
            Self::Text(text) => serializer.serialize_str(&without_quotes(text)),
        }
    }
}

fn without_quotes(text: &str) -> Cow<'_, str> {
    let is_plain = |letter: char| !matches!(letter, ',' | '"') && !letter.is_control();
    if text.chars().all(is_plain) {
        return text.into();
    }
    let plain = |letter| match letter {
        ',' => ';',
        '"' => '\'',
        letter if letter.is_control() => ' ',
        letter => letter,
    };
    text.chars().map(plain).collect()
}

/// The type of a column.
pub(super) trait Value {
    /// Whether every row has one.
    const IS_REQUIRED: bool = true;

    fn cell(&self) -> Cell<'_>;
}

impl<T: Value> Value for Option<T> {
    const IS_REQUIRED: bool = false;

    fn cell(&self) -> Cell<'_> {
        self.as_ref().map_or(Cell::Empty, T::cell)
    }
}

impl Value for String {
    fn cell(&self) -> Cell<'_> {
        if self.is_empty() { Cell::Empty } else { Cell::Text(self) }
    }
}

impl Value for bool {
    fn cell(&self) -> Cell<'_> {
        Cell::Bool(*self)
    }
}

impl Value for f64 {
    fn cell(&self) -> Cell<'_> {
        Cell::Number(*self)
    }
}

impl Value for usize {
    fn cell(&self) -> Cell<'_> {
        Cell::Whole(*self as u64)
    }
}

impl Value for Bytes {
    fn cell(&self) -> Cell<'_> {
        Cell::Whole(self.get())
    }
}

macro_rules! whole {
    ($($type:ty),+) => {
        $(impl Value for $type {
            fn cell(&self) -> Cell<'_> {
                Cell::Whole((*self).into())
            }
        })+
    };
}

whole!(u8, u32, u64);

macro_rules! named {
    ($($type:ty),+ $(,)?) => {
        $(impl Value for $type {
            fn cell(&self) -> Cell<'_> {
                Cell::Text(to_variant_name(self).expect("its variants are plain names"))
            }
        })+
    };
}

named!(
    Allocator,
    Completion,
    DataType,
    Engine,
    GpuPath,
    Handle,
    Issuer,
    MemoryKind,
    NcclRegistration,
    Operation,
    PathVerdict,
    Pattern,
    RateVerdict,
    Reduction,
    Registration,
    SharedMemory,
    Status,
    StoreKind,
    TransportKind,
    Wait,
);

/// Declares [`Row`] and [`COLUMNS`]: for each column what it says, its name and type, its role and,
/// where it has one, its unit.
macro_rules! columns {
    ($($(#[doc = $about:literal])+ $name:ident: $type:ty, $role:ident $(, $unit:literal)?;)+) => {
        /// A row of run.csv: the columns in this order. What a case does not have is an empty cell.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        pub struct Row {
            $($(#[doc = $about])+ pub $name: $type,)+
        }

        /// The columns, in their order.
        pub const COLUMNS: &[Column] = &[$(Column {
            name: stringify!($name),
            unit: concat!($($unit)?),
            about: concat!($($about),+),
            role: Role::$role,
            is_required: <$type as Value>::IS_REQUIRED,
            cell: |row| row.$name.cell(),
        }),+];
    };
}

columns! {
    /// Number of the row, from 1.
    case: usize, Planned;
    /// What carries the data: `local`, `p2p`, `shm`, `nccl`, `rdma`.
    transport: TransportKind, Case;
    /// Which flows go at the same time: `one-way`, `both-ways`, `pairs`, `one-to-all`,
    /// `all-to-one`, `all-pairs`, `bisection`, `neighbours`; of NCCL only `sendrecv` has one.
    pattern: Option<Pattern>, Case;
    /// How many flows go at the same time.
    flows: Option<usize>, Setting;
    /// What is done with the data: `copy`, `read-only`, `write-only`, `chase`; by NVLink switches
    /// `multicast-store`, `multimem-reduce`, `multimem-all-reduce`; of RDMA `write`, `read`, `send`,
    /// `ping-pong`; of NCCL `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `reduce`,
    /// `alltoall`, `gather`, `scatter`, `sendrecv`.
    operation: Option<Operation>, Case;
    /// What moves the bytes: `cpu`, `ce` (copy engine), `sm` (kernel), `nic` (network interface
    /// or what its provider has in its place).
    engine: Option<Engine>, Case;
    /// NCCL: what the elements are, by nccl-tests' names: `int8` to `uint64`, `half`, `float`,
    /// `double`, `bfloat16`, `f8e4m3`, `f8e5m2`.
    data_type: Option<DataType>, Case;
    /// NCCL: what becomes of those of all ranks: `sum`, `prod`, `max`, `min`, `avg`, `mulsum`
    /// (each times a factor of its rank's).
    reduction: Option<Reduction>, Case;
    /// NCCL: the rank whose part differs from that of the others, by its number in the
    /// communicator.
    root: Option<u32>, Case;
    /// NCCL: whether the received data replaces the given data.
    in_place: Option<bool>, Case;
    /// NCCL: where memory of the GPUs comes from: `cuda` (`cuMemAlloc`), `nccl` (`ncclMemAlloc`).
    buffer: Option<Allocator>, Case;
    /// NCCL: how memory is registered beforehand: `none`, `local` (`ncclCommRegister`), `symmetric`
    /// (a symmetric window of all ranks, `ncclCommWindowRegister`).
    registration: Option<NcclRegistration>, Case;
    /// NCCL: how often a CUDA graph of the operations of a sample is launched (`-G`); 0: operations
    /// are queued one by one.
    graph: Option<u32>, Setting;
    /// NCCL: how the ranks are divided into several communicators that do the same at once, by
    /// `--split`: `AND:0x7`, `OR:0x7`, `MOD:2`, `DIV:8`.
    split: Option<String>, Setting;
    /// NCCL: ranks of the communicator, one for each GPU; of one communicator, where there are
    /// several.
    communicator_ranks: Option<u32>, Setting;
    /// NCCL: operations of one group (`--agg-iters`).
    operations_per_group: Option<u64>, Setting;
    /// NCCL: whether the CPU waits for each group before it begins the next one.
    blocking: Option<bool>, Setting;
    /// NCCL: the variables given by `--nccl-env`, with spaces between them; run.json has all that
    /// were set.
    nccl_env: Option<String>, Run;
    /// Who issues the operations: `read` (the target pulls), `write` (the source pushes); empty
    /// where it makes no difference.
    issuer: Option<Issuer>, Case;
    /// How memory of a GPU reaches another process: `ipc`, `cumem`, `fabric`.
    handle: Option<Handle>, Case;
    /// Where pairs of GPUs are sampled, the number of pairs that are measured; ordered pairs where
    /// flows go one way.
    pairs_measured: Option<u32>, Run;
    /// The number of all such pairs.
    pairs: Option<u32>, Run;
    /// Where the first flow's source lies: `gpu`, `host`.
    source_memory: Option<MemoryKind>, Case;
    /// Where the first flow's target lies.
    target_memory: Option<MemoryKind>, Case;
    /// Ordinal of the GPU of the first flow's source; run.json has its UUID.
    source_gpu: Option<u32>, Case;
    /// Ordinal of the GPU of the first flow's target.
    target_gpu: Option<u32>, Case;
    /// Rank of the first flow's source.
    source_rank: Option<u32>, Setting;
    /// Rank of the first flow's target.
    target_rank: Option<u32>, Setting;
    /// Host of the first flow's source.
    source_host: Option<String>, Run;
    /// Host of the first flow's target.
    target_host: Option<String>, Run;
    /// NUMA node of the first flow's source, if it is host memory.
    source_numa_node: Option<u32>, Case;
    /// NUMA node of the first flow's target, if it is host memory.
    target_numa_node: Option<u32>, Case;
    /// CPU of the first flow's source; empty if ranks share CPUs.
    source_cpu: Option<u32>, Planned;
    /// CPU of the first flow's target; empty if ranks share CPUs.
    target_cpu: Option<u32>, Planned;
    /// Provider of libfabric, such as `efa`, `tcp`, `tcp;ofi_rxm`, `shm`; of NCCL its plugin's.
    provider: Option<String>, Found;
    /// The provider's protocol, by libfabric's name.
    protocol: Option<String>, Measured;
    /// The network of the source's first interface, such as `10.0.0.0/24`.
    fabric: Option<String>, Planned;
    /// The source's interfaces by libfabric's names of their domains, joined by `+`; operations
    /// take them in turn.
    source_domain: Option<String>, Setting;
    /// The target's interfaces, as `source_domain`.
    target_domain: Option<String>, Setting;
    /// The devices behind the source's domains, joined by `+`, where the provider names them.
    source_nic: Option<String>, Planned;
    /// The devices behind the target's domains, as `source_nic`.
    target_nic: Option<String>, Planned;
    /// Endpoints of a rank on each of its interfaces.
    endpoints: Option<u32>, Planned;
    /// How the source's memory was registered with the interface: `host` by its address,
    /// `dma-buf` a GPU's by a dma-buf of the driver, `hmem` a GPU's by its address
    /// (`FI_HMEM_CUDA`).
    source_registration: Option<Registration>, Measured;
    /// How the target's memory was registered.
    target_registration: Option<Registration>, Measured;
    /// How data of GPUs comes to the interfaces: `direct` (GPUDirect: the provider has promised
    /// that it makes no copy in host memory, or can make none), `unproven` (it takes memory of
    /// GPUs and promises nothing, copies messages on their way, or may take shared memory),
    /// `staged` (through page-locked host memory); empty for host memory.
    gpu_path: Option<GpuPath>, Found;
    /// Whether the data could go through memory that processes of a host share, past the interface:
    /// `no` (the ranks are on different hosts, or the provider has no such way or has promised not
    /// to take it), `possible` (within a host it may, and does not say), `yes` (it has no other).
    shared_memory: Option<SharedMemory>, Measured;
    /// Whether the provider makes these writes or reads of messages, as its device has no RDMA for
    /// them: by the device's own count of bytes where it has one (`hw_counters` of EFA's driver),
    /// else by the provider's word; empty where there is neither.
    emulated: Option<bool>, Measured;
    /// Most operations of a flow under way at once.
    window: Option<u32>, Found;
    /// What ended a bandwidth sample: `confirmed` (the target's word that all had arrived),
    /// `arrival` (of a read).
    bandwidth_completion: Option<Completion>, Measured;
    /// What ended a latency: `delivery` (the provider's word that the data was in the target's
    /// memory), `transmit` (EFA's own writes and messages: the interface's word that the target's
    /// interface had the data), `arrival` (of a read, of an answer), `confirmed` (staged: the
    /// target's word that it was in its GPU).
    latency_completion: Option<Completion>, Measured;
    /// Data in one transfer of one flow; of NCCL in the larger of a rank's two buffers, as
    /// nccl-tests has it: where each rank has a part, whole 16 bytes of each.
    size_bytes: Option<Bytes>, Case, "bytes";
    /// The most that goes through one slot of the staging ring.
    slot_bytes: Option<Bytes>, Measured, "bytes";
    /// Slots of the staging ring.
    slots: Option<u64>, Measured;
    /// How the source's CPU stores into a slot: `cached`, `non-temporal`.
    source_store: Option<StoreKind>, Measured;
    /// How the target's CPU stores out of a slot.
    target_store: Option<StoreKind>, Measured;
    /// How a CPU waits for the other end: `spin`, `yield`.
    wait: Option<Wait>, Measured;
    /// Which way the data went: `nvlink`, `pcie`, `nvlink + pcie`, `nvlink-c2c`, `gpu-memory` (it
    /// stayed in its GPU), `host-memory`, `loopback`, `tcp`, `efa`, `infiniband`, `roce`; where
    /// `path_verdict` is `unknown`, which way it should have gone. NCCL: the transports of its
    /// channels by its own log, each with the count of channels, such as `P2P/CUMEM/read x24`,
    /// `SHM/direct x2`, `NET/Libfabric/0/GDRDMA x8`; `NVLS` where that was chosen.
    path: Option<String>, Evidence;
    /// NCCL: the algorithm that it chose for this size, such as `RING`; empty where it chooses
    /// none: messages.
    algorithm: Option<String>, Evidence;
    /// NCCL: the protocol that it chose: `LL`, `LL128`, `SIMPLE`.
    algorithm_protocol: Option<String>, Evidence;
    /// NCCL: the protocol of its plugin for libfabric: `SENDRECV`, `RDMA`.
    plugin_protocol: Option<String>, Evidence;
    /// `proven`: what was counted on this path is the data, and none of it was counted elsewhere;
    /// `contradicted`: the data went another way than it should; `unknown`: the counters do not
    /// tell. NCCL: `proven`: all ranks' logs say this path, and nothing that was set asks for
    /// another; `contradicted`: a variable asks for what the log says was not done; `unknown`:
    /// the log does not say.
    path_verdict: Option<PathVerdict>, Evidence;
    /// Why `path_verdict` is what it is.
    path_reason: Option<String>, Evidence;
    /// Bytes that counters have seen on the path for each byte of data that should pass them;
    /// empty where nothing counts. NCCL: bytes that a GPU sent over NVLink, on average, for each
    /// byte of `size_bytes`: in a ring the factor of the bus bandwidth, less where the NVSwitch
    /// reduces.
    wire_bytes_per_payload_byte: Option<f64>, Evidence;
    /// `ok`: measured, every byte right; `skipped`: cannot run here; `corrupt`: wrong data, no
    /// number; `failed`: something went wrong.
    status: Status, Measured;
    /// Why `status` is not `ok`.
    reason: String, Measured;
    /// Doubts about the numbers, separated by spaces.
    flags: String, Measured;
    /// Median bandwidth (of RDMA all bytes over all time) of one flow, one direction: the total
    /// over `flows`, which is that of the slowest flow, or of RDMA the mean. What NVLink switches
    /// bring to several GPUs counts once: of what one GPU issues, or of an all-reduce as a whole.
    bandwidth_gb_s: Option<f64>, Measured, "10⁹ bytes/s";
    /// Lower end of the 95 % confidence interval of `bandwidth_gb_s`; empty below 6 samples.
    bandwidth_gb_s_low: Option<f64>, Measured, "10⁹ bytes/s";
    /// Upper end of the 95 % confidence interval of `bandwidth_gb_s`; empty below 6 samples.
    bandwidth_gb_s_high: Option<f64>, Measured, "10⁹ bytes/s";
    /// Median bandwidth of all flows together, until the slowest is done (of NCCL only of
    /// `sendrecv`); of RDMA the sum of what all ranks reach at the same time.
    bandwidth_gb_s_total: Option<f64>, Measured, "10⁹ bytes/s";
    /// Median of the operations that all flows together complete in a second, as perftest's MsgRate
    /// and fabtests' Mxfers/sec count them; of RDMA.
    operations_per_s: Option<f64>, Measured, "1/s";
    /// NCCL: the bus bandwidth, by nccl-tests' formulas; `bandwidth_gb_s` is then the algorithm
    /// bandwidth; empty for one rank, where nothing goes through a link.
    bandwidth_gb_s_bus: Option<f64>, Measured, "10⁹ bytes/s";
    /// What most machines with the links that are up here reach with large transfers: of one flow
    /// in one direction, of NCCL the bus bandwidth.
    expected_gb_s: Option<f64>, Evidence, "10⁹ bytes/s";
    /// What a healthy machine reaches at least with large transfers.
    expected_gb_s_low: Option<f64>, Evidence, "10⁹ bytes/s";
    /// What no machine can exceed.
    expected_gb_s_high: Option<f64>, Evidence, "10⁹ bytes/s";
    /// The measured bandwidth over `expected_gb_s`; 1 is as expected. Of small transfers it says
    /// how much their start weighs.
    expected_fraction: Option<f64>, Evidence;
    /// How `expected_gb_s` comes about: links, their rate, the share that is reached.
    expected_from: Option<String>, Evidence;
    /// Where the share in `expected_from` is from.
    expected_source: Option<String>, Evidence;
    /// `expected`: it is what a healthy machine reaches; `below`: it is less, or the machine has
    /// less than it should have (links that are down, a narrow PCIe link); `above`: it is more than
    /// the path can carry, so it took another path, or the time is wrong; `unknown`: nothing tells;
    /// empty where nothing was measured.
    verdict: Option<RateVerdict>, Evidence;
    /// Why `verdict` is what it is.
    verdict_reason: Option<String>, Evidence;
    /// Of several ranks that move data of their own: the one with the least bandwidth.
    slowest_rank: Option<u32>, Measured;
    /// Median bandwidth of all flows of `slowest_rank` together.
    slowest_rank_gb_s: Option<f64>, Measured, "10⁹ bytes/s";
    /// Samples of the bandwidth.
    bandwidth_samples: Option<usize>, Measured;
    /// Transfers of each flow in one sample.
    operations_per_sample: Option<u64>, Measured;
    /// Coefficient of variation of the bandwidth samples; 0.01 is 1 %.
    bandwidth_variation: Option<f64>, Measured;
    /// Whether the confidence interval reached the precision asked for.
    converged: Option<bool>, Measured;
    /// How long the machine was busy with the row, from the preparation to the release; on a
    /// simulated machine in its time.
    machine_seconds: Option<f64>, Measured, "s";
    /// Samples of the latency; of `chase` single loads.
    latency_samples: Option<u64>, Measured;
    /// The smallest latency.
    latency_ns_min: Option<u64>, Measured, "ns";
    /// The median latency.
    latency_ns_p50: Option<u64>, Measured, "ns";
    /// 90 % of the latencies are no larger; empty where fewer than 10 are larger, as below.
    latency_ns_p90: Option<u64>, Measured, "ns";
    /// 99 % of the latencies are no larger.
    latency_ns_p99: Option<u64>, Measured, "ns";
    /// 99.9 % of the latencies are no larger.
    latency_ns_p999: Option<u64>, Measured, "ns";
    /// The largest latency.
    latency_ns_max: Option<u64>, Measured, "ns";
    /// The resolution of the clock.
    clock_resolution_ns: Option<u64>, Measured, "ns";
    /// By how much a time of the clock may be wrong, however fine its resolution is: of CUDA's
    /// events, by their documentation.
    clock_accuracy_ns: Option<u64>, Measured, "ns";
    /// What a latency of GPU work holds beside the operation: the median of spans between the same
    /// events without any. It is never subtracted.
    empty_span_ns: Option<u64>, Measured, "ns";
    /// The same with a kernel that does nothing: what a launch costs.
    empty_kernel_ns: Option<u64>, Measured, "ns";
    /// Wrong data: from the beginning of the target to the first wrong byte.
    corrupt_offset_bytes: Option<u64>, Measured, "bytes";
    /// Wrong data: what the first wrong byte must be.
    corrupt_expected: Option<u8>, Measured, "0 to 255";
    /// Wrong data: what the first wrong byte was.
    corrupt_found: Option<u8>, Measured, "0 to 255";
    /// Wrong data: how many bytes of the target; of reductions all bytes of the wrong elements.
    corrupt_bytes: Option<u64>, Measured, "bytes";
    /// Wrong data: the rank of the target; of NCCL its number in the communicator (in that of all
    /// ranks, where there are several).
    corrupt_rank: Option<u32>, Measured;
    /// Whether a simulated machine was measured.
    simulated: bool, Planned;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_table_of_columns_is_this_one() {
        let line = |column: &Column| {
            format!("| `{}` | {} | {} |\n", column.name, column.unit, column.about.trim_start())
        };
        let table: String = COLUMNS.iter().map(line).collect();
        let published = include_str!("../../results/README.md");
        if !published
            .ends_with(&format!("| column | unit | meaning |\n| --- | --- | --- |\n{table}"))
        {
            let made = concat!(env!("CARGO_MANIFEST_DIR"), "/target/columns.md");
            std::fs::write(made, table).unwrap();
            panic!("the columns of results/README.md are not those of a row: see {made}");
        }
    }
}
