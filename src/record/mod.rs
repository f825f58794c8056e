//! The results: one row a case, written as soon as it is known.
//!
//! Owns the columns and the files of a run's folder. Knows nothing of how a number came about.

mod csv;
mod files;
mod hlog;
mod json;
pub mod provenance;
mod table;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{
    measure::{Latency, Measurement, Outcome, SAMPLE_TIME_MIN},
    plan::{Case, TransportKind},
    transport::{Staging, StoreKind, Wait},
    units::{Bytes, nanoseconds},
};

use provenance::Provenance;

pub use csv::text as csv_text;
pub use json::text as json_text;
pub use table::{print, tables};

/// What became of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Measured, and every byte was right.
    Ok,
    /// It cannot run here.
    Skipped,
    /// The data was wrong; there is no bandwidth.
    Corrupt,
    /// Something went wrong on the way.
    Failed,
}

/// A row of `run.csv`: the columns in this order. What a case does not have is an empty cell.
/// `results/README.md` explains each to its reader.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Number of the row, from 1.
    pub case: usize,
    /// `local`, `p2p`, `shm`, `nccl` or `rdma`.
    pub transport: TransportKind,
    /// Which flows go at the same time.
    pub pattern: Option<&'static str>,
    /// How many flows.
    pub flows: Option<usize>,
    /// What moves the bytes.
    pub engine: Option<&'static str>,
    /// Where the buffers live.
    pub memory: Option<&'static str>,
    /// The first flow's source.
    pub source_rank: Option<u32>,
    /// The first flow's target.
    pub target_rank: Option<u32>,
    /// NUMA node of the source.
    pub source_numa_node: Option<u32>,
    /// NUMA node of the target.
    pub target_numa_node: Option<u32>,
    /// CPU of the source, where it has one for itself.
    pub source_cpu: Option<u32>,
    /// CPU of the target, where it has one for itself.
    pub target_cpu: Option<u32>,
    /// Bytes of one transfer of one flow.
    pub size_bytes: Option<Bytes>,
    /// The most that goes through one slot of the staging ring.
    pub slot_bytes: Option<Bytes>,
    /// Slots of the staging ring.
    pub slots: Option<u64>,
    /// How the source stores into a slot.
    pub source_store: Option<StoreKind>,
    /// How the target stores out of a slot.
    pub target_store: Option<StoreKind>,
    /// How an end waits for the other.
    pub wait: Option<Wait>,
    /// What became of it.
    pub status: Status,
    /// Why, if it was not measured.
    pub reason: String,
    /// Doubts about the numbers, separated by spaces.
    pub flags: String,
    /// Median bandwidth of one flow: one direction.
    pub bandwidth_gb_s: Option<f64>,
    /// Lower end of its 95 % confidence interval.
    pub bandwidth_gb_s_low: Option<f64>,
    /// Upper end of its 95 % confidence interval.
    pub bandwidth_gb_s_high: Option<f64>,
    /// Median bandwidth of all flows together.
    pub bandwidth_gb_s_total: Option<f64>,
    /// Samples of the bandwidth.
    pub bandwidth_samples: Option<usize>,
    /// Operations of each flow in one bandwidth sample.
    pub operations_per_sample: Option<u64>,
    /// Coefficient of variation of the bandwidth samples.
    pub bandwidth_variation: Option<f64>,
    /// Whether the interval reached the precision that was asked for.
    pub converged: Option<bool>,
    /// Samples of the latency.
    pub latency_samples: Option<u64>,
    /// Smallest latency.
    pub latency_ns_min: Option<u64>,
    /// Median latency.
    pub latency_ns_p50: Option<u64>,
    /// 90th percentile of the latency.
    pub latency_ns_p90: Option<u64>,
    /// 99th percentile of the latency.
    pub latency_ns_p99: Option<u64>,
    /// 99.9th percentile of the latency.
    pub latency_ns_p999: Option<u64>,
    /// Largest latency.
    pub latency_ns_max: Option<u64>,
    /// What the clock could tell apart.
    pub clock_resolution_ns: Option<u64>,
    /// Corrupt data: bytes from the beginning of the target to the first wrong one.
    pub corrupt_offset_bytes: Option<u64>,
    /// Corrupt data: what that byte must be, 0 to 255.
    pub corrupt_expected: Option<u8>,
    /// Corrupt data: what it was, 0 to 255.
    pub corrupt_found: Option<u8>,
    /// Corrupt data: how many bytes of the target were wrong.
    pub corrupt_bytes: Option<u64>,
    /// Corrupt data: the rank whose target was wrong.
    pub corrupt_rank: Option<u32>,
    /// Whether a simulated machine was measured.
    pub simulated: bool,
}

impl Row {
    /// The row of a transport that cannot run here at all.
    pub fn absent(case: usize, transport: TransportKind, reason: &str) -> Self {
        Self {
            case,
            transport,
            pattern: None,
            flows: None,
            engine: None,
            memory: None,
            source_rank: None,
            target_rank: None,
            source_numa_node: None,
            target_numa_node: None,
            source_cpu: None,
            target_cpu: None,
            size_bytes: None,
            slot_bytes: None,
            slots: None,
            source_store: None,
            target_store: None,
            wait: None,
            status: Status::Skipped,
            reason: reason.to_owned(),
            flags: String::new(),
            bandwidth_gb_s: None,
            bandwidth_gb_s_low: None,
            bandwidth_gb_s_high: None,
            bandwidth_gb_s_total: None,
            bandwidth_samples: None,
            operations_per_sample: None,
            bandwidth_variation: None,
            converged: None,
            latency_samples: None,
            latency_ns_min: None,
            latency_ns_p50: None,
            latency_ns_p90: None,
            latency_ns_p99: None,
            latency_ns_p999: None,
            latency_ns_max: None,
            clock_resolution_ns: None,
            corrupt_offset_bytes: None,
            corrupt_expected: None,
            corrupt_found: None,
            corrupt_bytes: None,
            corrupt_rank: None,
            simulated: false,
        }
    }

    /// The row of a case that went wrong for `reason`.
    pub fn failed(number: usize, case: &Case, reason: &str) -> Self {
        Self { status: Status::Failed, ..Self::of_case(number, case, reason) }
    }

    /// The row of what became of a case.
    pub fn new(number: usize, case: &Case, outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Skipped(reason) => Self::of_case(number, case, reason),
            Outcome::Corrupt(mismatch, staging) => Self {
                status: Status::Corrupt,
                reason: format!(
                    "rank {} found {} wrong bytes; the first at offset {} is {:#04x} and must be \
                     {:#04x}",
                    mismatch.rank,
                    mismatch.count,
                    mismatch.offset,
                    mismatch.found,
                    mismatch.expected
                ),
                corrupt_offset_bytes: Some(mismatch.offset),
                corrupt_expected: Some(mismatch.expected),
                corrupt_found: Some(mismatch.found),
                corrupt_bytes: Some(mismatch.count),
                corrupt_rank: Some(mismatch.rank),
                ..Self::of_case(number, case, "").staged(*staging)
            },
            Outcome::Measured(measured) => {
                let flows = case.flows.len() as f64;
                let total = &measured.bandwidth_gb_s;
                let has_interval = total.count >= SAMPLES_FOR_INTERVAL;
                let latency = &measured.latency;
                let resolution_ns = nanoseconds(measured.clock_resolution);
                Self {
                    status: Status::Ok,
                    bandwidth_gb_s: Some(total.median / flows),
                    bandwidth_gb_s_low: has_interval.then_some(total.low / flows),
                    bandwidth_gb_s_high: has_interval.then_some(total.high / flows),
                    bandwidth_gb_s_total: Some(total.median),
                    bandwidth_samples: Some(total.count),
                    operations_per_sample: Some(measured.operations_per_sample),
                    bandwidth_variation: Some(total.variation),
                    converged: Some(measured.converged),
                    latency_samples: Some(latency.count()),
                    latency_ns_min: Some(latency.min_ns()),
                    latency_ns_p50: Some(latency.quantile_ns(0.5)),
                    latency_ns_p90: Some(latency.quantile_ns(0.9)),
                    latency_ns_p99: Some(latency.quantile_ns(0.99)),
                    latency_ns_p999: Some(latency.quantile_ns(0.999)),
                    latency_ns_max: Some(latency.max_ns()),
                    clock_resolution_ns: Some(resolution_ns),
                    flags: flags(measured),
                    ..Self::of_case(number, case, "").staged(measured.staging)
                }
            }
        }
    }

    fn of_case(number: usize, case: &Case, reason: &str) -> Self {
        let first = case.flows.first();
        Self {
            pattern: Some(case.pattern.name()),
            flows: Some(case.flows.len()),
            engine: Some("cpu"),
            memory: Some("host"),
            source_rank: first.map(|flow| flow.source.rank.0),
            target_rank: first.map(|flow| flow.target.rank.0),
            source_numa_node: first.map(|flow| flow.source.numa_node.0),
            target_numa_node: first.map(|flow| flow.target.numa_node.0),
            source_cpu: first.and_then(|flow| flow.source.cpu),
            target_cpu: first.and_then(|flow| flow.target.cpu),
            size_bytes: Some(case.size),
            ..Self::absent(number, case.transport, reason)
        }
    }

    fn staged(self, staging: Option<Staging>) -> Self {
        Self {
            slot_bytes: staging.map(|staging| staging.slot),
            slots: staging.map(|staging| staging.slots),
            source_store: staging.map(|staging| staging.source_store),
            target_store: staging.map(|staging| staging.target_store),
            wait: staging.map(|staging| staging.wait),
            ..self
        }
    }
}

/// A latency below this many times the clock's resolution is told apart badly.
const RESOLUTIONS_FOR_LATENCY: u64 = 10;

/// Below so many samples the 99.9th percentile is just the largest one.
const SAMPLES_FOR_P999: u64 = 1000;

/// Below so many samples no two of them make a 95 % interval of the median.
const SAMPLES_FOR_INTERVAL: usize = 6;

fn flags(measured: &Measurement) -> String {
    let resolution_ns = nanoseconds(measured.clock_resolution);
    let latency = &measured.latency;
    let staging = measured.staging;
    [
        (!measured.converged, "not_converged"),
        (measured.bandwidth_gb_s.count < SAMPLES_FOR_INTERVAL, "few_bandwidth_samples"),
        (measured.sample_time < SAMPLE_TIME_MIN / 2, "short_samples"),
        (latency.quantile_ns(0.5) < RESOLUTIONS_FOR_LATENCY * resolution_ns, "timer_coarse"),
        (latency.count() < SAMPLES_FOR_P999, "few_latency_samples"),
        (staging.is_some_and(|staging| staging.wait == Wait::Yield), "shared_cpus"),
        (staging.is_some_and(|staging| staging.is_misplaced), "numa_misplaced"),
    ]
    .into_iter()
    .filter_map(|(raised, flag)| raised.then_some(flag))
    .collect::<Vec<&str>>()
    .join(" ")
}

/// Results that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder cannot be used.
    #[error("cannot use {path} for the results: {reason}", path = .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What stands against it, and what to do.
        reason: String,
    },
    /// A file in it cannot be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The files of a run.
const FILES: [&str; 3] = ["run.csv", "run.json", "latency.hlog"];

/// Removes the files of a run that were just made; what cannot be removed stays.
fn remove(folder: &Path, is_new: bool) {
    for file in FILES {
        let _ = fs::remove_file(folder.join(file));
    }
    if is_new {
        let _ = fs::remove_dir(folder);
    }
}

/// The open files of a run.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    /// Whether the folder was made for this run.
    is_new: bool,
    csv: csv::Csv,
    json: json::Json,
    hlog: hlog::Hlog,
    rows: Vec<Row>,
}

impl Recorder {
    /// Makes `folder` with the files of a run that has no row yet.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or written, or holds a run already.
    pub fn create(folder: &Path, provenance: &Provenance) -> Result<Self, Error> {
        let refuse = |reason: String| Error::Folder { path: folder.to_owned(), reason };
        if folder.exists() && !folder.is_dir() {
            return Err(refuse("it is a file: name a folder with --output".to_owned()));
        }
        let is_new = !folder.exists();
        fs::create_dir_all(folder)
            .map_err(|err| refuse(format!("{err}; name another with --output")))?;
        for file in FILES {
            if folder.join(file).exists() {
                let reason = format!("it already holds {file}: name another with --output");
                return Err(refuse(reason));
            }
        }
        let files = || {
            let csv = csv::Csv::create(&folder.join("run.csv"))?;
            let json = json::Json::create(&folder.join("run.json"), provenance)?;
            let hlog = hlog::Hlog::create(&folder.join("latency.hlog"))?;
            Ok((csv, json, hlog))
        };
        match files() {
            Ok((csv, json, hlog)) => {
                Ok(Self { folder: folder.to_owned(), is_new, csv, json, hlog, rows: Vec::new() })
            }
            Err(Error::Write { path, source }) => {
                // Another run that has just taken the folder keeps its files.
                if source.kind() != io::ErrorKind::AlreadyExists {
                    remove(folder, is_new);
                }
                let reason = format!("cannot write {}: {source}", path.display());
                Err(refuse(format!("{reason}; name another with --output")))
            }
            Err(err) => Err(err),
        }
    }

    /// Takes the files away again: nothing was measured.
    pub fn discard(self) {
        remove(&self.folder, self.is_new);
    }

    /// Appends a row to every file and hands it to the disk. Where one cannot be written, each
    /// file ends with the last row that it could take whole.
    ///
    /// # Errors
    ///
    /// A file cannot be written, most often because the disk is full.
    pub fn append(&mut self, row: Row, latency: Option<&Latency>) -> Result<(), Error> {
        // run.csv last: a row that stands there stands in the other files too.
        if let Some(latency) = latency {
            self.hlog.append(&row, latency)?;
        }
        self.json.append(&row)?;
        self.csv.append(&row)?;
        self.rows.push(row);
        Ok(())
    }

    /// The rows so far.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
