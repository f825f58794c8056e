//! How long cases take, before they are measured.

use std::{collections::BTreeSet, time::Duration};

use super::{judge::Judge, step::Step};
use crate::{
    judge::expected::{Chosen, Expected},
    measure::time_beside_empty,
    plan::{Case, Effort, Gpu, Rank, TransportKind, topology::Host},
    show::progress::Weight,
    transport::{run_in, stream_time_min},
};

/// A transfer begins so much later than it is asked for, where nothing better is known.
const START_S: f64 = 10e-6;

/// What memory of this machine's host moves between two processes, where nothing better is known.
const HOST_GB_S: f64 = 5.0;

/// The time to make a GPU ready at its first use: its context, and its clocks' rise.
const CONTEXT_S: f64 = 0.3;
const RISE_S: f64 = 0.5;

/// The time to connect the ranks of a communicator.
const COMMUNICATOR_S: f64 = 0.5;

/// The warm-up takes about so many samples where a GPU times them, and where a CPU does.
const WARM_UP_OF_GPU: f64 = 6.0;
const WARM_UP_OF_CPU: f64 = 18.0;

/// Streams of RDMA begin so many times: in the warm-up for each of its steps, then for the passes.
const STREAMS: f64 = 8.0;

/// An empty span of a GPU's stream lasts about so long.
const EMPTY_SPAN: Duration = Duration::from_nanos(800);

/// What CPUs move spreads so far that sampling goes on for such a share of the time limit: of copies,
/// and of streams between processes. Measured on a virtual machine of two processors.
const SPREAD_OF_COPIES: f64 = 0.5;
const SPREAD_OF_STREAMS: f64 = 1.0;

/// Samples that a pass takes at least, and operations that are proven.
const SAMPLES: f64 = 20.0;
const PROOFS: f64 = 16.0;

/// What a case takes of a transport beside its passes.
struct Costs {
    /// A sample lasts at least so long.
    sample_s: f64,
    /// To allocate, connect and give back.
    prepare_s: f64,
    /// To fill a buffer, and to compare it with its pattern.
    check_gb_s: f64,
}

/// What `case` takes, if it is measured by `effort` and reaches what is `expected`.
fn seconds(case: &Case, effort: Effort, expected: Option<&Expected>) -> f64 {
    let has_gpus = case.ends().any(|end| end.gpu().is_some());
    let ranks = case.members().len();
    let Costs { sample_s, prepare_s, check_gb_s } = costs(case, has_gpus, ranks, effort.precision);
    let size = case.size.get() as f64;
    let factor = case.collective().and_then(|(of, nccl, _)| of.busbw_factor(nccl.ranks));
    let (start_s, gb_s) = match expected {
        Some(expected) => (expected.start_us * 1e-6, expected.gb_s),
        None => (START_S, HOST_GB_S),
    };
    let operation = start_s + size * factor.unwrap_or(1.0) / (gb_s * 1e9);
    let check = 2.0 * size / (check_gb_s * 1e9);
    let [limit, bandwidth, latency] =
        [effort.time_limit, effort.bandwidth_time, effort.latency_time].map(|t| t.as_secs_f64());

    let is_stream = case.transport == TransportKind::Rdma;
    let compares_each = effort.compares_each && !is_stream;
    let sample = if compares_each { operation } else { operation.max(sample_s) };
    let (bulk, warm_up) = match (case.operation.is_latency_only(), effort.samples) {
        (true, _) => (0.0, SAMPLES * operation),
        (false, Some(count)) => (f64::from(count) * sample, warm_up(sample, has_gpus)),
        (false, None) => {
            ((SAMPLES * sample).max(bandwidth).min(limit.max(sample)), warm_up(sample, has_gpus))
        }
    };
    let spread_s = match (expected, effort.samples) {
        (None, None) if !has_gpus && bulk > 0.0 && is_stream => SPREAD_OF_STREAMS * limit,
        (None, None) if !has_gpus && bulk > 0.0 => SPREAD_OF_COPIES * limit,
        _ => 0.0,
    };
    let bulk = bulk.max(spread_s);
    let bulk = match is_stream && bulk > 0.0 {
        true => bulk.max(stream_time_min().as_secs_f64()) + STREAMS * run_in(case).as_secs_f64(),
        false => bulk,
    };
    let single = match (operation >= sample_s || compares_each) && !is_stream && bulk > 0.0 {
        true => 0.0,
        false => (SAMPLES * operation)
            .max(latency.min(1e4 * operation))
            .max(spread_s / 2.0)
            .min(limit / 2.0),
    };
    let proof = (PROOFS * (operation + check)).min(latency.max(operation + check));
    let batches = |pass: f64, is_each: bool| match is_each {
        true => pass / operation,
        false => (pass / 0.25).ceil(),
    };
    let checks = batches(bulk, compares_each) + batches(single, effort.compares_each);
    let (warm_up, proof) = if compares_each { (0.0, 0.0) } else { (warm_up, proof) };
    prepare_s + warm_up + proof + bulk + single + checks * check
}

/// A sample that a CPU times is confirmed by more, unless it is long.
fn warm_up(sample: f64, has_gpus: bool) -> f64 {
    match has_gpus || sample >= 0.05 {
        true => WARM_UP_OF_GPU * sample,
        false => WARM_UP_OF_CPU * sample,
    }
}

fn costs(case: &Case, has_gpus: bool, ranks: usize, precision: f64) -> Costs {
    let size = case.size.get() as f64;
    let ends = case.flows.len() as f64;
    let check_gb_s = if has_gpus { 1000.0 } else { HOST_GB_S };
    // Memory of the host is touched page by page.
    let host = 0.002 + 2.0 * ends * size / 4e9;
    let of_stream_s = time_beside_empty(EMPTY_SPAN, precision).as_secs_f64();
    match case.transport {
        TransportKind::Local | TransportKind::P2p => {
            let sample_s = if case.flows.len() > 1 { 1e-3 } else { of_stream_s };
            Costs { sample_s, prepare_s: 0.003 * ends, check_gb_s }
        }
        TransportKind::Shm if has_gpus => {
            let sample_s = if ranks > 1 { 1e-3 } else { of_stream_s };
            Costs { sample_s, prepare_s: 0.01, check_gb_s }
        }
        TransportKind::Shm => Costs { sample_s: 1e-3, prepare_s: host, check_gb_s },
        TransportKind::Nccl => Costs { sample_s: 1e-3, prepare_s: 0.006 * ends, check_gb_s },
        TransportKind::Rdma => Costs { sample_s: 2e-3, prepare_s: 0.02 + host, check_gb_s },
    }
}

/// What is expected of the steps of a run.
pub(super) struct Estimate {
    /// Of each step; `None`: it takes no time.
    pub(super) weights: Vec<Option<Weight>>,
    /// In all, with what is done once.
    pub(super) all: Duration,
}

/// How long `steps` take between `hosts`.
pub(super) fn estimate(steps: &[Step], effort: Effort, judge: &Judge, hosts: &[Host]) -> Estimate {
    let of_case = |case: &Case| {
        if judge.skips(case, hosts) {
            return 0.0;
        }
        let expected = judge.expected(case, hosts, Chosen::default());
        seconds(case, effort, expected.as_ref().ok())
    };
    // Hosts measure their cases of a step at the same time.
    let of_step = |step: &Step| {
        let transport = step.cases().next()?.transport;
        let seconds = step.cases().map(of_case).fold(0.0, f64::max);
        Some(Weight { transport, seconds })
    };
    let weights: Vec<Option<Weight>> = steps.iter().map(of_step).collect();
    let is_all_skipped = weights.iter().flatten().all(|weight| weight.seconds == 0.0);
    let rise_s = if is_all_skipped { 0.0 } else { RISE_S };
    let all = once(steps, hosts, rise_s)
        + weights.iter().flatten().map(|weight| weight.seconds).sum::<f64>();
    Estimate { weights, all: Duration::from_secs_f64(all) }
}

/// What the first uses of GPUs and communicators take. A process makes its GPUs ready one after
/// another.
fn once(steps: &[Step], hosts: &[Host], rise_s: f64) -> f64 {
    let cases = || steps.iter().flat_map(Step::cases);
    let gpus: BTreeSet<(Rank, Gpu)> =
        cases().flat_map(Case::ends).filter_map(|end| Some((end.rank, end.gpu()?))).collect();
    let of_rank = |rank: &Rank| gpus.iter().filter(|(of, _)| of == rank).count();
    let most = hosts.iter().flat_map(|host| &host.ranks).map(of_rank).max().unwrap_or(0);
    let communicators: BTreeSet<u32> =
        cases().filter_map(|case| case.nccl).map(|nccl| nccl.ranks).collect();
    let rise_s = if gpus.is_empty() { 0.0 } else { rise_s };
    CONTEXT_S * most as f64 + rise_s + COMMUNICATOR_S * communicators.len() as f64
}
