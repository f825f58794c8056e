//! The ways of moving bytes, behind one small trait.
//!
//! Owns what moves data and what a moved buffer must hold. Knows nothing of how often or how long
//! a case is measured, nor of how a row is written.

mod control;
pub mod cuda_env;
mod gpu;
mod nccl;
pub mod nccl_env;
mod patience;
pub mod pattern;
mod rdma;
mod shm;
pub mod values;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    ffi, machine,
    plan::{Case, Rank, TransportKind, topology::Topology},
    units::{Bytes, nanoseconds},
    world::{self, World},
};

pub use crate::ffi::{
    clock::{Moment, machine_now},
    shm::Store as StoreKind,
};
pub use gpu::{Gpus, clock_rose, warm};
pub use pattern::Mismatch;
pub use rdma::{run_in, stream_time_min};

/// Why a case that can run here failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A foreign call.
    #[error("cannot {action}: {source}")]
    Call {
        /// What was tried.
        action: String,
        /// The call that did not succeed.
        source: ffi::CallError,
    },
    /// Memory that another rank offers cannot be opened. That rank may have failed.
    #[error(
        "cannot open a rank's shared memory (all ranks need one user and one PID namespace, and \
         g2g's file must be readable): {0}"
    )]
    Open(ffi::CallError),
    /// A signal has requested the end of the run.
    #[error("the run was interrupted")]
    Interrupted,
    /// Another rank failed, or cannot be reached.
    #[error(transparent)]
    World(#[from] world::Error),
    /// A rank made no progress during a transfer.
    #[error("no byte moved for {} s while waiting for rank {rank} to {waiting_for}", .waited.as_secs_f64())]
    Stalled {
        /// The rank that this one waited for.
        rank: u32,
        /// What it was to do.
        waiting_for: &'static str,
        /// How long.
        waited: Duration,
    },
    /// A rank gave up during a transfer. Its own error says why.
    #[error("rank {0} gave up on this case")]
    Abandoned(u32),
    /// A collective step was not done in time.
    #[error("cannot {action}: not done within {} s; {}", .waited.as_secs_f64(), who_is_missing(.missing))]
    Unfinished {
        /// What was tried.
        action: String,
        /// How long.
        waited: Duration,
        /// The ranks that have not entered it, if known.
        missing: Option<Vec<Rank>>,
    },
    /// The case can run on rank 0 but not on this rank.
    #[error("{0}")]
    Unavailable(String),
    /// A GPU was held until the host released it, and the host did not.
    #[error("the GPU was held for {} s before its work began: nothing was timed", .0.as_secs_f64())]
    HeldTooLong(Duration),
    /// The clock went back.
    #[error(
        "the clock (CLOCK_MONOTONIC_RAW) went back by {} ns: what it timed is not right; the kernel, the \
         hypervisor or a library in LD_PRELOAD is at fault",
        .0.as_nanos()
    )]
    ClockWentBack(Duration),
    /// The ranks' messages are inconsistent.
    #[error("what the ranks report does not fit together: {0}")]
    Disagreement(&'static str),
}

impl Error {
    fn call(action: &str, source: ffi::CallError) -> Self {
        Self::Call { action: action.to_owned(), source }
    }

    /// The same for a collective call, which may wait for a missing rank.
    fn together(action: &str, source: ffi::CallError) -> Self {
        match source.source {
            ffi::Cause::Late(waited) => {
                Self::Unfinished { action: action.to_owned(), waited, missing: None }
            }
            _ => Self::call(action, source),
        }
    }

    /// Whether another rank's failure may be the cause. That rank's error then says more.
    pub const fn may_be_a_consequence(&self) -> bool {
        use Error::{Abandoned, Open, Stalled, Unfinished};
        matches!(self, Open(_) | Abandoned(_) | Unfinished { .. } | Stalled { .. })
    }
}

/// Turns a foreign call that did not succeed into an error that says what was tried.
trait TryingTo<T> {
    /// `action` ends the sentence "cannot …".
    fn trying_to(self, action: &str) -> Result<T, Error>;
}

impl<T> TryingTo<T> for Result<T, ffi::CallError> {
    fn trying_to(self, action: &str) -> Result<T, Error> {
        self.map_err(|source| Error::call(action, source))
    }
}

/// Fails if this thread's clock has gone back since the last call, because times since then are
/// wrong.
pub fn check_clock() -> Result<(), Error> {
    ffi::clock::went_back().map_or(Ok(()), |step| Err(Error::ClockWentBack(step)))
}

fn who_is_missing(ranks: &Option<Vec<Rank>>) -> String {
    match ranks.as_deref() {
        None => "another rank may be missing".to_owned(),
        Some([]) => "all ranks had come to it".to_owned(),
        Some([rank]) => format!("rank {} has not come to it", rank.0),
        Some(ranks) => {
            let list: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
            format!("ranks {} have not come to it", list.join(" "))
        }
    }
}

/// The first wrong data that one of these comparisons finds.
fn first_mismatch(
    mut comparisons: impl Iterator<Item = Result<Option<Mismatch>, Error>>,
) -> Result<Option<Mismatch>, Error> {
    comparisons.find_map(Result::transpose).transpose()
}

/// Why this machine has too little free memory for what `needs` so many bytes, if so; `remedy`
/// ends the sentence.
fn lack_of_memory(needs: &str, needed: Bytes, remedy: &str) -> Option<String> {
    let available = machine::available_memory().filter(|&available| needed > available)?;
    let (needed, available) = (needed.rounded(), available.rounded());
    Some(format!("{needs} {needed} of memory but {available} are available{remedy}"))
}

/// Whether a case can run on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It can.
    Yes,
    /// It cannot, for this reason. The sentence goes into the `reason` column.
    No(String),
}

/// One way of moving bytes.
pub trait Transport {
    /// Whether `case` can run here, as far as this rank of `world` can tell. Called before anything
    /// is allocated.
    fn support(&self, case: &Case, world: &World) -> Result<Support, Error>;

    /// Acquires buffers, segments and connections: everything that must not be timed. Every rank
    /// calls it, also those without a part in the case.
    fn prepare(&self, case: &Case, world: &mut World) -> Result<Box<dyn Transfer>, Error>;

    /// The GPUs of this process, if it moves data of GPUs.
    fn gpus(&self) -> Option<&Gpus> {
        None
    }
}

/// A span of a GPU's work without operations: what its times hold beside those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Empty {
    /// Nothing but the events, and the waits of streams for each other.
    Span,
    /// The same with a kernel that does nothing.
    Kernel,
}

/// This rank's part of a transfer that is ready to run. Dropping it releases everything.
pub trait Transfer {
    /// How the data is staged, if it is.
    fn staging(&self) -> Option<Staging> {
        None
    }

    /// The properties of the clock that times the spans.
    fn clock(&self) -> Clock;

    /// Whether host memory of any rank lies on another NUMA node than the case says.
    fn is_misplaced(&self) -> bool {
        false
    }

    /// Whether its ranks may be on several hosts and do not bring themselves together: they have to
    /// meet before and after each run.
    fn is_apart(&self) -> bool {
        false
    }

    /// Whether the work of a GPU begins while it is queued, so that the time of queueing counts.
    fn is_unheld(&self) -> bool {
        false
    }

    /// Writes the pattern of `seed` into this rank's sources, and bytes that all differ from it
    /// into its targets.
    fn fill(&mut self, seed: u64) -> Result<(), Error>;

    /// For each of `spans`: waits until every rank of the case is ready, moves the data of every
    /// flow `operations` times back to back, and records when this rank began and ended. It does
    /// not allocate, print or take a lock.
    fn run(&mut self, operations: u64, spans: &mut [Span]) -> Result<(), Error>;

    /// The same for latencies: one operation of every flow in each span, begun when the previous
    /// one has ended.
    fn run_singly(&mut self, spans: &mut [Span]) -> Result<(), Error> {
        self.run(1, spans)
    }

    /// Times spans without operations, where events of a GPU time. Else it leaves them as they are.
    fn run_empty(&mut self, _empty: Empty, _spans: &mut [Span]) -> Result<(), Error> {
        Ok(())
    }

    /// Compares every byte of this rank's targets with the pattern of `seed`. A mismatch is an
    /// answer, not an error.
    fn verify(&mut self, seed: u64) -> Result<Option<Mismatch>, Error>;

    /// Every rank calls it after the last sample. The conclusion is rank 0's.
    fn conclude(&mut self, _world: &mut World) -> Result<Conclusion, Error> {
        Ok(Conclusion::default())
    }
}

/// What is known of a case only at its end.
#[derive(Debug, Default)]
pub struct Conclusion {
    /// How libfabric carried out the case, if it is one of RDMA.
    pub network: Option<Network>,
    /// What the library has logged on each rank since the last case, if it has a log.
    pub log: Option<Vec<(Rank, String)>>,
}

/// How libfabric carries out a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The protocol below the provider, by libfabric's name.
    pub protocol: String,
    /// Most operations of a flow under way at once.
    pub window: u32,
    /// How the source's memory was registered.
    pub source_registration: Registration,
    /// How the target's memory was registered.
    pub target_registration: Registration,
    /// How data of GPUs comes to the interfaces, if it is a GPU's.
    pub gpu_path: Option<GpuPath>,
    /// Whether the data could go through shared memory.
    pub shared_memory: SharedMemory,
    /// Whether the provider emulates writes or reads by messages, because its device does not
    /// support them: by the device's counters if it has them, otherwise as the provider says;
    /// `None` if neither is known.
    pub is_emulated: Option<bool>,
    /// Operations between two confirmations at most.
    pub group_max: u64,
    /// The event that ended a bandwidth sample.
    pub bandwidth_completion: Completion,
    /// The event that ended a latency.
    pub latency_completion: Completion,
    /// The data of all completed operations of all ranks.
    pub moved: Bytes,
}

/// How an interface reaches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Registration {
    /// Host memory by its address.
    Host,
    /// GPU memory by a dma-buf of the driver.
    DmaBuf,
    /// GPU memory by its address: the provider itself asks the driver (`FI_HMEM_CUDA`).
    Hmem,
}

/// How data of a GPU reaches an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum GpuPath {
    /// GPUDirect. The provider has promised to make no copies in host memory
    /// (`FI_HMEM_P2P_REQUIRED`), or can make none.
    Direct,
    /// The provider takes memory of GPUs and does not say whether it copies through the host.
    Unproven,
    /// Through page-locked host memory at both ends.
    Staged,
}

/// Whether data could go through memory that processes of a host share, past the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SharedMemory {
    /// It could not: the ranks are on different hosts, or the provider has no such way, or has
    /// promised not to take it (`FI_OPT_SHARED_MEMORY_PERMITTED`).
    No,
    /// The provider may take it within a host, and does not say whether it did.
    Possible,
    /// The provider has no other way.
    Yes,
}

/// The event that ended the timing of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Completion {
    /// The target's own word that all of it had arrived; while it went on, operations were
    /// replaced as the provider reported their transmission.
    Confirmed,
    /// The provider's word that the data was in the target's memory (`FI_DELIVERY_COMPLETE`).
    Delivery,
    /// The interface's word that the target's interface had the data: the provider leaves the
    /// completion to a device that knows no other.
    Transmit,
    /// The data was here: of a read, and of an answer.
    Arrival,
}

/// One rank's times of one sample, in nanoseconds of a clock that all ranks of the case share, or,
/// with [`Clock::is_streaming`], of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Just before the request of the first byte of this rank's sources; `None` without a source.
    pub start_ns: Option<u64>,
    /// Just after the last byte of this rank's targets was in place; `None` without a target.
    pub end_ns: Option<u64>,
}

impl Span {
    /// The span of a rank whose own clock has timed all of it.
    fn lasting(elapsed: Duration) -> Self {
        Self { start_ns: Some(0), end_ns: Some(nanoseconds(elapsed)) }
    }
}

/// The properties of a transfer's clock, and its limits for samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Its resolution.
    pub resolution: Duration,
    /// By how much a time may be wrong however fine the resolution is; zero if nothing is known.
    pub accuracy: Duration,
    /// The shortest time of a bandwidth sample.
    pub sample_time_min: Duration,
    /// All samples of a stream together last at least this long.
    pub stream_time_min: Duration,
    /// The most operations of one sample: a multiple of [`Clock::operations_step`].
    pub operations_max: u64,
    /// The operations of a bandwidth sample are a multiple of this.
    pub operations_step: u64,
    /// Whether each rank's flows continue before, between and after its spans until all ranks have
    /// their samples. The ranks' bandwidths then add up.
    pub is_streaming: bool,
}

/// A sample lasts at least this many times the clock's resolution, and its accuracy: less than 1 %
/// of error.
const RESOLUTIONS_MIN: u32 = 100;

/// The shortest sample of CPUs. A transfer between processes takes some microseconds until its
/// first chunk has arrived, which is below 1 % of this.
const SAMPLE_TIME_OF_HOST: Duration = Duration::from_millis(1);

/// The most operations of a sample of CPUs.
const OPERATIONS_OF_HOST: u64 = 1 << 32;

impl Clock {
    /// The clock of the host, for CPUs that read it before and after they copy.
    pub fn of_host(resolution: Duration) -> Self {
        Self {
            resolution,
            accuracy: Duration::ZERO,
            sample_time_min: SAMPLE_TIME_OF_HOST.max(resolution.saturating_mul(RESOLUTIONS_MIN)),
            stream_time_min: Duration::ZERO,
            operations_max: OPERATIONS_OF_HOST,
            operations_step: 1,
            is_streaming: false,
        }
    }
}

/// How data is staged through a ring of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staging {
    /// The size of a slot.
    pub slot: Bytes,
    /// How many slots the ring has.
    pub slots: u64,
    /// How a source's CPU stores into a slot.
    pub source_store: Option<StoreKind>,
    /// How a target's CPU stores out of a slot.
    pub target_store: Option<StoreKind>,
    /// How a CPU waits for the other end.
    pub wait: Option<Wait>,
}

impl Staging {
    /// Where GPUs fill and empty the slots, and no CPU has a part in it.
    fn by_gpus(slot: Bytes, slots: u64) -> Self {
        Self { slot, slots, source_store: None, target_store: None, wait: None }
    }
}

/// How an end waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// It keeps its CPU.
    Spin,
    /// It offers its CPU to others after a short spin, since ranks share CPUs.
    Yield,
    /// It sleeps after a short spin: the GPUs do the work, and keep the time.
    Sleep,
}

/// Opens the transport `kind` on a machine of this `topology`.
///
/// # Errors
///
/// What the machine lacks for it and what to do about that, for the `reason` column.
pub fn open(kind: TransportKind, topology: &Topology) -> Result<Box<dyn Transport>, String> {
    match kind {
        TransportKind::Local | TransportKind::P2p => Ok(Box::new(gpu::Gpus::new(topology)?)),
        TransportKind::Shm => Ok(Box::new(shm::Shm::new(topology))),
        TransportKind::Nccl => Ok(Box::new(nccl::Nccl::new(topology)?)),
        TransportKind::Rdma => Ok(Box::new(rdma::Rdma::new(topology)?)),
    }
}

/// How long each sample lasted over all ranks: from the first start to the last end.
pub fn durations(ranks: &[Vec<Span>]) -> Result<Vec<Duration>, Error> {
    let count = ranks.iter().map(Vec::len).max().unwrap_or(0);
    if ranks.iter().any(|spans| spans.len() != count) {
        return Err(Error::Disagreement("one rank has more samples than another"));
    }
    (0..count)
        .map(|sample| {
            let spans = || ranks.iter().map(|spans| spans[sample]);
            let start = spans().filter_map(|span| span.start_ns).min();
            let end = spans().filter_map(|span| span.end_ns).max();
            match (start, end) {
                (Some(start), Some(end)) if end >= start => Ok(Duration::from_nanos(end - start)),
                (Some(_), Some(_)) => Err(Error::Disagreement("it ended before it began")),
                _ => Err(Error::Disagreement("no rank noted its start or its end")),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::topology::tests::machine;

    fn span(start_ns: Option<u64>, end_ns: Option<u64>) -> Span {
        Span { start_ns, end_ns }
    }

    #[test]
    fn a_sample_lasts_from_the_first_start_to_the_last_end_of_all_ranks() {
        let ranks = [
            vec![span(Some(100), None), span(Some(500), Some(900))],
            vec![span(None, Some(180)), span(Some(450), Some(700))],
            vec![span(None, None), span(None, None)],
        ];
        let expected = [Duration::from_nanos(80), Duration::from_nanos(450)];
        assert_eq!(durations(&ranks).unwrap(), expected);
    }

    #[test]
    fn times_that_do_not_fit_are_refused() {
        assert!(durations(&[vec![span(Some(2), Some(1))]]).is_err());
        assert!(durations(&[vec![span(Some(2), None)], vec![span(None, None)]]).is_err());
        assert!(durations(&[vec![span(Some(2), Some(3))], vec![]]).is_err());
    }

    #[test]
    fn what_cannot_run_here_says_what_it_needs() {
        let topology = machine(&[&[0, 1]]);
        assert!(open(TransportKind::Shm, &topology).is_ok());
        for kind in [TransportKind::Local, TransportKind::Nccl] {
            let reason = open(kind, &topology).err().unwrap();
            assert!(reason.contains(".so."), "{reason}");
        }
    }
}
