//! A row of the results, from the outcome of a case.

use super::{Latency, MemoryKind, Row, Status};
use crate::{
    judge::counters::CountedPath,
    judge::expected::{Expected, Judgement},
    measure::{Bulk, Measurement, Outcome, SAMPLES_FOR_INTERVAL},
    nccl_log::{PathVerdict, Summary},
    plan::{Case, Flow, NicName, Place, Rank, TransportKind, topology::Host},
    transport::{Mismatch, Network, Staging, Wait},
    units::nanoseconds,
};

impl Row {
    /// The row of a transport that cannot run here at all.
    pub fn absent(case: usize, transport: TransportKind, reason: &str) -> Self {
        Self { case, transport, reason: reason.to_owned(), ..Self::default() }
    }

    /// The row of a case that went wrong for `reason`.
    pub fn failed(number: usize, case: &Case, reason: &str) -> Self {
        Self { status: Status::Failed, ..Self::of_case(number, case, reason) }
    }

    /// The row of a case before it is measured.
    pub fn planned(number: usize, case: &Case) -> Self {
        Self::of_case(number, case, "")
    }

    /// The row of the outcome of a case.
    pub fn new(number: usize, case: &Case, outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Skipped(reason) => Self::of_case(number, case, reason),
            Outcome::Corrupt(mismatch, staging) => Self {
                status: Status::Corrupt,
                reason: corruption(mismatch, case),
                corrupt_offset_bytes: Some(mismatch.offset),
                corrupt_expected: Some(mismatch.expected),
                corrupt_found: Some(mismatch.found),
                corrupt_bytes: Some(mismatch.count),
                corrupt_rank: Some(mismatch.rank),
                ..Self::of_case(number, case, "").staged(*staging)
            },
            Outcome::Measured(measured) => {
                let latency = &measured.latency;
                Self {
                    status: Status::Ok,
                    latency_samples: Some(latency.count()),
                    latency_ns_min: Some(latency.min_ns()),
                    latency_ns_p50: Some(latency.quantile_ns(0.5)),
                    latency_ns_p90: tail_ns(latency, 0.9),
                    latency_ns_p99: tail_ns(latency, 0.99),
                    latency_ns_p999: tail_ns(latency, 0.999),
                    latency_ns_max: Some(latency.max_ns()),
                    clock_resolution_ns: Some(nanoseconds(measured.clock.resolution)),
                    clock_accuracy_ns: Some(nanoseconds(measured.clock.accuracy))
                        .filter(|accuracy| *accuracy > 0),
                    empty_span_ns: measured.empty.map(|empty| nanoseconds(empty.span)),
                    empty_kernel_ns: measured.empty.map(|empty| nanoseconds(empty.kernel)),
                    flags: flags(measured),
                    ..Self::of_case(number, case, "").staged(measured.staging)
                }
                .with_bandwidth(measured.bandwidth.as_ref(), case)
                .over(measured.network.as_ref())
            }
        }
    }

    fn with_bandwidth(self, bandwidth: Option<&Bulk>, case: &Case) -> Self {
        let Some(bandwidth) = bandwidth else { return self };
        let total = &bandwidth.gb_s;
        let collective = case.collective();
        let flows = case.transfers() as f64;
        let bus = collective.and_then(|(of, nccl, _)| of.busbw_factor(nccl.ranks));
        let has_interval = total.count >= SAMPLES_FOR_INTERVAL;
        Self {
            bandwidth_gb_s: Some(total.estimate / flows),
            bandwidth_gb_s_low: has_interval.then_some(total.low / flows),
            bandwidth_gb_s_high: has_interval.then_some(total.high / flows),
            bandwidth_gb_s_total: match (collective, case.messages()) {
                (None, _) => Some(total.estimate),
                (_, messages) => messages.map(|flows| total.estimate * flows.len() as f64),
            },
            operations_per_s: (case.transport == TransportKind::Rdma)
                .then(|| total.estimate * 1e9 / case.size.get() as f64),
            bandwidth_gb_s_bus: bus.map(|factor| factor * total.estimate),
            slowest_rank: bandwidth.slowest.map(|(rank, _)| rank.0),
            slowest_rank_gb_s: bandwidth.slowest.map(|(_, gb_s)| gb_s),
            bandwidth_samples: Some(total.count),
            operations_per_sample: Some(bandwidth.operations_per_sample),
            bandwidth_variation: Some(total.variation),
            converged: Some(bandwidth.converged),
            ..self
        }
    }

    fn of_case(number: usize, case: &Case, reason: &str) -> Self {
        if let Some((_, nccl, layout)) = case.collective() {
            let messages = case.messages();
            let first = messages.as_ref().and_then(|flows| flows.first());
            return Self {
                pattern: messages.as_ref().map(|_| case.pattern),
                flows: messages.as_ref().map(Vec::len),
                operation: Some(case.operation),
                data_type: Some(nccl.data_type),
                reduction: nccl.reduction,
                root: nccl.root,
                in_place: Some(nccl.is_in_place),
                operations_per_group: Some(nccl.iterations.operations_per_group),
                blocking: Some(nccl.iterations.is_blocking),
                buffer: Some(nccl.buffer),
                registration: Some(nccl.registration),
                graph: Some(nccl.iterations.graph),
                split: nccl.split.map(|split| split.to_string()),
                communicator_ranks: Some(nccl.ranks),
                size_bytes: Some(layout.size(nccl.data_type)),
                ..Self::absent(number, case.transport, reason).along(first)
            };
        }
        let first = case.flows.first();
        let fabric = case.fabric.as_ref();
        let nics = |rank: Option<Rank>| -> &[NicName] {
            let own =
                fabric.and_then(|fabric| fabric.nics.iter().find(|(of, _)| Some(*of) == rank));
            own.map_or(&[], |(_, nics)| nics)
        };
        let source_nics = nics(first.map(|flow| flow.source.rank));
        let target_nics = nics(first.map(|flow| flow.target.rank));
        Self {
            pattern: Some(case.pattern),
            flows: Some(case.flows.len()),
            operation: Some(case.operation),
            engine: Some(case.engine),
            issuer: case.issuer,
            handle: case.handle,
            size_bytes: Some(case.size),
            pairs_measured: case.sample.map(|sample| sample.pairs),
            pairs: case.sample.map(|sample| sample.of),
            provider: fabric.map(|fabric| fabric.provider.clone()),
            fabric: source_nics.first().map(|nic| nic.fabric.clone()),
            source_domain: joined(source_nics.iter().map(|nic| Some(&nic.domain))),
            target_domain: joined(target_nics.iter().map(|nic| Some(&nic.domain))),
            source_nic: joined(source_nics.iter().map(|nic| nic.device.as_ref())),
            target_nic: joined(target_nics.iter().map(|nic| nic.device.as_ref())),
            endpoints: fabric.map(|fabric| fabric.endpoints),
            window: fabric.map(|fabric| fabric.window),
            ..Self::absent(number, case.transport, reason).along(first)
        }
    }

    /// Adds the ends of `flow`.
    fn along(self, flow: Option<&Flow>) -> Self {
        let Some(Flow { source, target }) = flow else { return self };
        Self {
            source_memory: Some(memory(source.place)),
            target_memory: Some(memory(target.place)),
            source_gpu: source.gpu().map(|gpu| gpu.0),
            target_gpu: target.gpu().map(|gpu| gpu.0),
            source_rank: Some(source.rank.0),
            target_rank: Some(target.rank.0),
            source_numa_node: source.numa_node().map(|node| node.0),
            target_numa_node: target.numa_node().map(|node| node.0),
            source_cpu: source.cpu(),
            target_cpu: target.cpu(),
            ..self
        }
    }

    /// What tells its case from the others of its run, whatever came of it.
    pub fn identity(&self) -> String {
        let is_known = |column: &&super::Column| {
            (column.role.is_planned() || column.role == super::Role::Run) && column.name != "case"
        };
        let cells =
            super::COLUMNS.iter().filter(is_known).map(|column| (column.cell)(self).to_string());
        cells.collect::<Vec<String>>().join(",")
    }

    /// Adds the names of the hosts of its ranks.
    pub fn on(self, hosts: &[Host]) -> Self {
        let name = |rank: Option<u32>| {
            let rank = Rank(rank?);
            let host = hosts.iter().find(|host| host.ranks.contains(&rank))?;
            Some(host.name.clone())
        };
        Self { source_host: name(self.source_rank), target_host: name(self.target_rank), ..self }
    }

    /// Adds the name of the first and the last of the hosts that measured it by themselves, if no end
    /// has told it.
    pub fn within(self, first: &Host, last: &Host) -> Self {
        Self {
            source_host: self.source_host.or_else(|| Some(first.name.clone())),
            target_host: self.target_host.or_else(|| Some(last.name.clone())),
            ..self
        }
    }

    /// Adds the variables that the user gave, if it is a row of NCCL.
    pub fn with_nccl_env(self, variables: &[(String, String)]) -> Self {
        let set = variables.iter().map(|(name, value)| format!("{name}={value}"));
        let text = set.collect::<Vec<String>>().join(" ");
        let is_nccl = self.transport == TransportKind::Nccl;
        Self { nccl_env: Some(text).filter(|text| is_nccl && !text.is_empty()), ..self }
    }

    /// Adds the path of a collective's data, by NCCL's own log.
    pub fn by_path(self, path: Summary, verdict: PathVerdict) -> Self {
        let transports = path.transports.join(" + ");
        Self {
            path: Some(transports).filter(|text| !text.is_empty()),
            algorithm: path.algorithm,
            algorithm_protocol: path.protocol,
            provider: path.provider,
            plugin_protocol: path.plugin_protocol,
            path_verdict: Some(verdict.verdict),
            path_reason: Some(verdict.reason),
            ..self
        }
    }

    /// Adds the expected rate, and the verdict on the measured one.
    pub fn judged(self, judgement: Judgement) -> Self {
        let Judgement { expected, fraction, verdict, reason } = judgement;
        let rate = |of: fn(&Expected) -> f64| expected.as_ref().map(of);
        Self {
            expected_gb_s: rate(|expected| expected.gb_s),
            expected_gb_s_low: rate(|expected| expected.low),
            expected_gb_s_high: rate(|expected| expected.high),
            expected_fraction: fraction,
            verdict: Some(verdict),
            verdict_reason: Some(reason),
            expected_from: expected.as_ref().map(|expected| expected.derivation.clone()),
            expected_source: expected.map(|expected| expected.source),
            ..self
        }
    }

    /// Adds the path of its data, by counters.
    pub fn counted(self, path: CountedPath) -> Self {
        Self {
            path: path.path,
            path_verdict: Some(path.verdict),
            path_reason: Some(path.reason),
            wire_bytes_per_payload_byte: path.wire_bytes_per_payload_byte,
            ..self
        }
    }

    /// Adds the bytes that each GPU has sent over NVLink for each byte of a collective's size, if
    /// they were counted.
    pub fn with_nvlink_bytes(self, bytes: Option<f64>) -> Self {
        let Some(bytes) = bytes else { return self };
        let told = format!("each GPU sent {bytes:.2} bytes over NVLink for each byte of the size");
        let reasons: Vec<String> = self.path_reason.into_iter().chain([told]).collect();
        Self {
            path_reason: Some(reasons.join("; ")),
            wire_bytes_per_payload_byte: Some(bytes),
            ..self
        }
    }

    /// Adds flags.
    pub fn with_flags(self, flags: &[&str]) -> Self {
        let own = Some(self.flags.as_str()).filter(|own| !own.is_empty());
        let all: Vec<&str> = own.into_iter().chain(flags.iter().copied()).collect();
        Self { flags: all.join(" "), ..self }
    }

    fn over(self, network: Option<&Network>) -> Self {
        let Some(network) = network else { return self };
        Self {
            protocol: Some(network.protocol.clone()),
            source_registration: Some(network.source_registration),
            target_registration: Some(network.target_registration),
            gpu_path: network.gpu_path,
            shared_memory: Some(network.shared_memory),
            emulated: network.is_emulated,
            window: Some(network.window),
            bandwidth_completion: self.bandwidth_gb_s.map(|_| network.bandwidth_completion),
            latency_completion: Some(network.latency_completion),
            ..self
        }
    }

    fn staged(self, staging: Option<Staging>) -> Self {
        Self {
            slot_bytes: staging.map(|staging| staging.slot),
            slots: staging.map(|staging| staging.slots),
            source_store: staging.and_then(|staging| staging.source_store),
            target_store: staging.and_then(|staging| staging.target_store),
            wait: staging.and_then(|staging| staging.wait),
            ..self
        }
    }
}

/// A latency below this many times the clock's resolution is imprecise.
const RESOLUTIONS_FOR_LATENCY: u64 = 10;

/// A percentile is known where so many values lie beyond it.
const VALUES_BEYOND: f64 = 10.0;

/// The share `quantile` of the latencies is no larger; `None` where too few are larger to tell.
fn tail_ns(latency: &Latency, quantile: f64) -> Option<u64> {
    // The share is no binary fraction.
    let beyond = (1.0 - quantile) * latency.count() as f64 + 1e-6;
    (beyond >= VALUES_BEYOND).then(|| latency.quantile_ns(quantile))
}

fn flags(measured: &Measurement) -> String {
    let resolution_ns = nanoseconds(measured.clock.resolution);
    let latency = &measured.latency;
    let staging = measured.staging;
    let bulk = |doubt: &dyn Fn(&Bulk) -> bool| measured.bandwidth.as_ref().is_some_and(doubt);
    let flags = [
        (bulk(&|bulk| !bulk.converged), "not_converged"),
        (bulk(&|bulk| bulk.gb_s.count < SAMPLES_FOR_INTERVAL), "few_bandwidth_samples"),
        (bulk(&|bulk| bulk.sample_time < measured.clock.sample_time_min / 2), "short_samples"),
        (latency.quantile_ns(0.5) < RESOLUTIONS_FOR_LATENCY * resolution_ns, "timer_coarse"),
        (staging.is_some_and(|staging| staging.wait == Some(Wait::Yield)), "shared_cpus"),
        (measured.is_misplaced, "numa_misplaced"),
        (measured.is_unheld, "unheld"),
        (measured.clock_rose, "clock_rose"),
        (measured.is_second, "measured_again"),
    ];
    raised(&flags).join(" ")
}

/// The flags that are raised.
pub(super) fn raised<'a>(flags: &[(bool, &'a str)]) -> Vec<&'a str> {
    flags.iter().filter(|(is_raised, _)| *is_raised).map(|(_, flag)| *flag).collect()
}

/// Names joined by `+`; `None` where one of them is not known, or there is none.
fn joined<'a>(names: impl Iterator<Item = Option<&'a String>>) -> Option<String> {
    let names: Option<Vec<&str>> = names.map(|name| name.map(String::as_str)).collect();
    names.filter(|names| !names.is_empty()).map(|names| names.join("+"))
}

const fn memory(place: Place) -> MemoryKind {
    match place {
        Place::Host { .. } | Place::Pinned { .. } => MemoryKind::Host,
        Place::Gpu(_) => MemoryKind::Gpu,
    }
}

fn corruption(mismatch: &Mismatch, case: &Case) -> String {
    let Mismatch { rank, offset, expected, found, count } = mismatch;
    let element = case.collective().map_or_else(String::new, |(_, nccl, _)| {
        format!(" (element {})", offset / nccl.data_type.size().get())
    });
    format!(
        "rank {rank} found {count} wrong bytes; the first at offset {offset}{element} is \
         {found:#04x} and must be {expected:#04x}"
    )
}
