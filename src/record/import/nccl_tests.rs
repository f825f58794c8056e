//! nccl-tests, whose lines are printed by `writeDeviceReport`, `writeResultHeader`,
//! `writeBenchmarkLine*`, `writePerIterReport` and `writeResultFooter` (`src/util.cu` of 2.19.6),
//! and before 2.17 by `src/common.cu` and, up to 2.11, by each collective's own file. What the
//! columns are is therefore read from their heads: older versions have fewer of them.
//!
//! Its GB are 10⁹ bytes (`getBw` of each collective), its sizes those of the larger buffer, as
//! ours; its time is a mean over all operations, so that only `-I` has a latency of one.

use std::collections::BTreeSet;

use clap::ValueEnum as _;

use super::number::{Printed, rate};
use super::{Imported, Program, Reader, Sink, UNVERIFIED, begins_with_number, quoted, words};
use crate::{
    plan::{Collective, DataType, Operation, Pattern, Reduction, TransportKind},
    record::{Row, Status, row::raised},
    units::{Bytes, nanoseconds_of_microseconds},
};

/// The program.
pub(super) const PROGRAM: Program = Program {
    name: "nccl-tests",
    described: "nccl-tests (text, or -J)",
    reader: |line| is_own(line).then(|| Box::<Text>::default() as Box<dyn Reader>),
};

/// Whether only nccl-tests, or what takes its form, prints such a line.
fn is_own(line: &str) -> bool {
    let Some(comment) = line.strip_prefix('#') else { return false };
    let begins = ["nccl-tests version ", "Collective test starting: ", "nThread "]
        .iter()
        .any(|beginning| comment.trim_start().starts_with(beginning));
    begins || comment.contains("in the form of nccl-tests version ") || heads(comment).is_some()
}

/// What one program of nccl-tests says of its run.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// What it measures, where it says so.
    pub(super) program: Option<String>,
    /// What all of its rows have.
    pub(super) row: Row,
    /// Whether each time includes a barrier (`-z 1`).
    pub(super) has_timed_barriers: bool,
}

/// One place of a line: out of place, or in place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Microseconds; `None` where the time is that of the CPU.
    pub(super) time: Option<Printed>,
    pub(super) algbw: Option<Printed>,
    pub(super) busbw: Option<Printed>,
    /// Elements that are not what they must be; `None` if nobody has compared them.
    pub(super) wrong: Option<f64>,
    /// How far elements are from what they must be. How far they may be is not said.
    pub(super) difference: Option<f64>,
    /// Microseconds of the single operations, of `-I`.
    pub(super) min: Option<f64>,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) max: Option<f64>,
}

impl Run {
    /// What it measures; `None` where it does not say so, as before 2.16.
    fn operation(&self) -> Result<Option<Operation>, String> {
        let Some(program) = &self.program else { return Ok(None) };
        let name = program.rsplit('/').next().unwrap_or(program);
        let name = name.split("_perf").next().unwrap_or(name);
        let found = Collective::from_str(name, false);
        found
            .map(|collective| Some(Operation::Collective(collective)))
            .map_err(|_| format!("g2g has nothing like {}", quoted(program)))
    }

    /// What a line says of both places. Older versions do not print all of its words.
    pub(super) fn line(
        &self,
        size: u64,
        data_type: Option<&str>,
        reduction: Option<&str>,
        root: Option<&str>,
    ) -> Result<Row, String> {
        let of_type = |name: &str| {
            // Before 2.10.
            let name = match name {
                "char" => "int8",
                "int" => "int32",
                other => other,
            };
            let found = DataType::from_str(name, false);
            found.map_err(|_| format!("{} is no data type", quoted(name)))
        };
        let of_reduction = |name: &str| match name {
            "none" => Ok(None),
            name => Reduction::from_str(name, false)
                .map(Some)
                .map_err(|_| format!("{} is no operation on elements", quoted(name))),
        };
        let of_root = |root: &str| match root.trim() {
            "-1" => Ok(None),
            root => root.parse().map(Some).map_err(|_| format!("{} is no root", quoted(root))),
        };
        let data_type = data_type.map(of_type).transpose()?;
        let reduction = reduction.map(of_reduction).transpose()?.flatten();
        let root = root.map(of_root).transpose()?.flatten();
        let operation = self.operation()?;
        let collective = operation.and_then(Operation::collective);
        let reduces = collective.is_none_or(|collective| collective.shape().reduces);
        let is_around = collective == Some(Collective::SendRecv);
        Ok(Row {
            transport: TransportKind::Nccl,
            operation,
            pattern: is_around.then_some(Pattern::Neighbours),
            data_type,
            // It names one for sendrecv too, which reduces nothing.
            reduction: reduction.filter(|_| reduces),
            root: root.filter(|_| collective.is_none_or(|of| of.has_root())),
            size_bytes: Some(Bytes::new(size)),
            ..self.row.clone()
        })
    }

    /// The row of one place of a line.
    pub(super) fn row(&self, line: &Row, place: &Place, in_place: bool) -> Row {
        let row = Row { in_place: Some(in_place), ..line.clone() };
        if let Some(wrong) = place.wrong.filter(|&wrong| wrong > 0.0) {
            let reason = format!("nccl-tests counted {wrong} wrong elements");
            return Row { status: Status::Corrupt, reason, ..row };
        }
        let is_checked = place.wrong.is_some() || place.difference == Some(0.0);
        let rate = rate(row.size_bytes.unwrap_or_default(), place.algbw, place.time);
        let collective = row.operation.and_then(Operation::collective);
        let ranks = row.communicator_ranks;
        let factor = collective.zip(ranks).and_then(|(of, ranks)| of.busbw_factor(ranks));
        let bus = match (rate, factor) {
            (Some(rate), Some(factor)) if rate.is_by_time => Some(factor * rate.gb_s),
            _ => place.busbw.map(|gb_s| gb_s.value).filter(|&gb_s| gb_s > 0.0),
        };
        let flags = [(!is_checked, UNVERIFIED), (self.has_timed_barriers, "barriers_timed")];
        let latency = |us: Option<f64>| us.and_then(nanoseconds_of_microseconds);
        Row {
            status: Status::Ok,
            bandwidth_gb_s: rate.map(|rate| rate.gb_s),
            // Of one rank nccl-tests prints 0, as its formulas say.
            bandwidth_gb_s_bus: bus.filter(|_| rate.is_some() && ranks != Some(1)),
            latency_ns_min: latency(place.min),
            latency_ns_p50: latency(place.p50),
            latency_ns_p99: latency(place.p99),
            latency_ns_max: latency(place.max),
            ..row
        }
        .with_flags(&raised(&flags))
    }
}

/// The names of its columns. `error`, before 2.13, is the largest difference.
const COLUMNS: &str = "size count type redop root time cputime algbw busbw #wrong error i_min \
                       i_max i_p99 i_cv% timestamp";

/// The columns before the numbers, those of each place, and how many words follow them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Columns {
    before: Vec<&'static str>,
    place: Vec<&'static str>,
    words_behind: usize,
}

/// The columns, if `comment` is their heads.
fn heads(comment: &str) -> Option<Columns> {
    let known = |word: &str| COLUMNS.split(' ').find(|name| *name == word);
    let columns: Vec<&str> = comment.split_whitespace().map_while(known).collect();
    let is_time = |&at: &usize| matches!(columns[at], "time" | "cputime");
    let mut times = (0..columns.len()).filter(is_time);
    let (first, second) = (times.next()?, times.next()?);
    let (before, place) = (&columns[..first], &columns[first..second]);
    let behind = columns[second..].strip_prefix(place)?;
    // A date and a time of day.
    let words_behind = if behind.first() == Some(&"timestamp") { 2 } else { 0 };
    let is_own = before.first() == Some(&"size") && place.contains(&"algbw");
    is_own.then(|| Columns { before: before.to_vec(), place: place.to_vec(), words_behind })
}

/// Reads what nccl-tests prints.
#[derive(Debug, Default)]
struct Text {
    run: Run,
    /// Group and rank of each device of the run.
    devices: BTreeSet<(u32, u32)>,
    /// Whether the list of devices has more than was printed.
    has_more_devices: bool,
    columns: Option<Columns>,
    /// Lines of the run that were read and not yet summed up.
    open_lines: usize,
}

impl Reader for Text {
    fn line(&mut self, line: &str, sink: &mut Sink<'_>) -> Result<(), String> {
        if let Some(comment) = line.strip_prefix('#') {
            self.comment(comment, &mut sink.about);
            return Ok(());
        }
        if begins_with_number(line) && self.columns.is_some() {
            return self.numbers(line, sink);
        }
        // A row that something else was printed into.
        let numbers = line.split_whitespace().filter(|word| word.parse::<f64>().is_ok());
        if self.columns.is_some() && numbers.count() >= 6 {
            return Err(format!("{} is half a row", quoted(line)));
        }
        Ok(())
    }

    fn end(&mut self, sink: &mut Sink<'_>) {
        self.close(&mut sink.about);
    }
}

impl Text {
    fn comment(&mut self, comment: &str, about: &mut Imported) {
        let text = comment.trim();
        // A process's list of devices that is too long for its buffer.
        self.has_more_devices |= text.ends_with("...");
        if let Some((_, rest)) = text.split_once("nccl-tests version ") {
            about.version = rest.split_whitespace().next().map(str::to_owned);
            let code = value(rest, "nccl-library=").and_then(|code| code.parse().ok());
            about.library = code.map(library);
            self.begin(about);
            self.run.row.simulated = rest.ends_with("[SIMULATED]");
        } else if let Some(program) = text.strip_prefix("Collective test starting: ") {
            self.begin(about);
            self.run.program = Some(program.to_owned());
        } else if text.starts_with("nThread ") {
            self.begin(about);
            let number = |name| value(text, name).and_then(|number| number.parse().ok());
            self.run.row.operations_per_group = number("agg iters: ");
            self.run.row.graph = number("graph: ").and_then(|graph| u32::try_from(graph).ok());
            self.run.row.blocking = Some(false);
        } else if let Some(how) = text.strip_prefix("Blocking Enabled: ") {
            let has_barrier = how.contains("barrier") && !how.contains("no barrier");
            self.run.has_timed_barriers = has_barrier && !how.contains("time excludes barrier");
            self.run.row.blocking = Some(true);
        } else if text == "Using devices" {
            self.devices.clear();
            self.has_more_devices = false;
        } else if let Some(device) = text.strip_prefix("Rank ") {
            let group = value(device, "Group ").and_then(|group| group.parse().ok());
            let rank = device.split_whitespace().next().and_then(|rank| rank.parse().ok());
            self.devices.extend(rank.map(|rank| (group.unwrap_or(0), rank)));
        } else if let Some(sum) = text.strip_prefix("Out of bounds values") {
            let sum = sum.trim_start_matches([' ', ':']);
            if sum.ends_with("FAILED") {
                about.notes.push(format!("nccl-tests found wrong data: {}", quoted(sum)));
            }
        } else if text.starts_with("Avg bus bandwidth") {
            self.open_lines = 0;
            // What follows without a beginning of its own says nothing of its program.
            self.run.program = None;
        } else if let Some(columns) = heads(comment) {
            self.columns = Some(columns);
            self.run.row.communicator_ranks = self.ranks();
        }
    }

    /// A run begins, unless it has begun already.
    fn begin(&mut self, about: &mut Imported) {
        if self.columns.take().is_none() {
            return;
        }
        self.close(about);
        self.open_lines = 0;
        self.run = Run::default();
    }

    /// A run has ended.
    fn close(&self, about: &mut Imported) {
        if self.open_lines > 0 {
            let note = "a run of nccl-tests ends without its last lines: it was cut off";
            about.notes.push(note.to_owned());
        }
    }

    /// How many ranks each communicator has; `None` where that differs, or is not said.
    fn ranks(&self) -> Option<u32> {
        let devices: Vec<&(u32, u32)> = self.devices.iter().collect();
        let mut sizes = devices.chunk_by(|one, other| one.0 == other.0).map(<[_]>::len);
        let first = sizes.next().filter(|_| !self.has_more_devices)?;
        sizes.all(|size| size == first).then(|| u32::try_from(first).ok()).flatten()
    }

    fn numbers(&mut self, line: &str, sink: &mut Sink<'_>) -> Result<(), String> {
        let Some(columns) = &self.columns else { return Ok(()) };
        let (before, length) = (columns.before.len(), columns.place.len());
        let words = words(line, before + 2 * length + columns.words_behind)?;
        let word = |name| columns.before.iter().position(|of| *of == name).map(|at| words[at]);
        let size = word("size").and_then(|size| size.parse().ok());
        let size = size.ok_or_else(|| format!("{} begins with no size", quoted(line)))?;
        let row = self.run.line(size, word("type"), word("redop"), word("root"))?;
        let places: Vec<Option<Place>> = words[before..before + 2 * length]
            .chunks(length)
            .map(|words| place(&columns.place, words))
            .collect::<Result<_, _>>()?;
        for (in_place, place) in [false, true].into_iter().zip(places) {
            if let Some(place) = place {
                sink.row(self.run.row(&row, &place, in_place));
            }
        }
        self.open_lines += 1;
        Ok(())
    }
}

/// The numbers of one place; `None` where nothing was measured in it.
fn place(columns: &[&str], words: &[&str]) -> Result<Option<Place>, String> {
    let mut place = Place::default();
    for (column, word) in columns.iter().zip(words) {
        if *word == "N/A" {
            continue;
        }
        let number = Printed::read(word).ok_or_else(|| format!("{} is no number", quoted(word)));
        match *column {
            "time" => place.time = Some(number?),
            "algbw" => place.algbw = Some(number?),
            "busbw" => place.busbw = Some(number?),
            "#wrong" => place.wrong = Some(number?.value),
            "error" => place.difference = number.ok().map(|of| of.value),
            "i_min" => place.min = Some(number?.value),
            "i_max" => place.max = Some(number?.value),
            "i_p99" => place.p99 = Some(number?.value),
            _ => {}
        }
    }
    let is_empty = place.algbw.is_none() && place.wrong.or(place.difference).is_none();
    Ok(Some(place).filter(|_| !is_empty))
}

/// The word behind `name`.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(name)?;
    rest.split_whitespace().next()
}

/// The version in NCCL's own count: 10000 × major + 100 × minor, up to 2.8 1000 × major.
pub(super) fn library(code: u32) -> String {
    let major = if code < 10_000 { 1_000 } else { 10_000 };
    format!("NCCL {}.{}.{}", code / major, code % major / 100, code % 100)
}
