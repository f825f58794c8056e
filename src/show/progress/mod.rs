//! Progress on standard error.

mod left;

use std::{
    env,
    io::{self, IsTerminal},
    path::Path,
    time::Instant,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) use left::{Left, Weight};

use super::words;
use crate::{
    plan::Case,
    record::{Naming, Row, Status},
    stderr::{say, visible},
    units::readable_nanoseconds,
};

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Errors only.
    Quiet,
    /// On a terminal a bar, in a log a line for each row.
    Normal,
    /// A line for each row on a terminal too, with how it was measured.
    Verbose,
}

/// A bar with the time left on a terminal, a line a row in a log, nothing when quiet.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    rows: usize,
    verbosity: Verbosity,
    left: Left,
    /// The case under way, and when it began.
    under_way: Option<(Weight, Instant)>,
}

impl Progress {
    /// For a run of `rows` rows, the first `finished` of which exist.
    pub(crate) fn new(rows: usize, finished: usize, left: Left, verbosity: Verbosity) -> Self {
        let is_quiet = verbosity == Verbosity::Quiet;
        let bar = bar(rows, is_quiet, "{bar:20} {pos}/{len} rows{prefix}  {wide_msg}");
        bar.set_position(finished as u64);
        let progress = Self { bar, rows, verbosity, left, under_way: None };
        progress.bar.set_prefix(progress.time_left());
        progress
    }

    /// As many `rows` more come, which take so long.
    pub(crate) fn more(&mut self, rows: usize, cases: impl IntoIterator<Item = Weight>) {
        self.rows += rows;
        self.bar.inc_length(rows as u64);
        self.left.more(cases);
        self.bar.set_prefix(self.time_left());
    }

    /// `case` begins, or a similar one on each host.
    pub(crate) fn begin(&mut self, case: &Case, weight: Weight) {
        let title = Row::planned(0, case).title(&Naming::default());
        self.bar.set_message(visible(&title).into_owned());
        self.under_way = Some((weight, Instant::now()));
    }

    /// The case has ended; its rows follow.
    pub(crate) fn end(&mut self) {
        if let Some((weight, began)) = self.under_way.take() {
            self.left.ended(weight, began.elapsed());
            self.bar.set_prefix(self.time_left());
        }
    }

    /// `row` is known.
    pub(crate) fn row(&self, row: &Row) {
        let is_log = self.verbosity == Verbosity::Normal && self.bar.is_hidden();
        if is_log || self.verbosity == Verbosity::Verbose {
            let (number, rows, left) = (row.case, self.rows, self.time_left());
            self.say(&format!("[{number}/{rows}{left}] {}", self.line(row)));
        }
        self.bar.inc(1);
    }

    /// The run begins, with its files in `folder`.
    pub(crate) fn begin_run(&self, folder: &Path) {
        if self.verbosity != Verbosity::Quiet {
            self.say(&format!(
                "results: {0}; if it is interrupted, the same command with --resume {0} goes on",
                folder.display()
            ));
        }
    }

    /// A round of a burn-in has ended.
    pub(crate) fn round(&self, line: &str) {
        let is_log = self.verbosity == Verbosity::Normal && self.bar.is_hidden();
        if is_log || self.verbosity == Verbosity::Verbose {
            self.say(line);
        } else {
            self.bar.set_message(visible(line).into_owned());
        }
    }

    /// The run is over.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// `, 40 s left`; empty after the last case.
    fn time_left(&self) -> String {
        let left = self.left.seconds();
        left.map_or_else(String::new, |seconds| format!(", {} left", readable_wait(seconds)))
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, line: &str) {
        if self.bar.is_hidden() || self.bar.is_finished() {
            say(line);
        } else {
            self.bar.println(visible(line));
        }
    }

    fn line(&self, row: &Row) -> String {
        let what = row.title(&Naming::default());
        match row.status {
            Status::Ok => {
                let p50 = readable_nanoseconds(row.latency_ns_p50.unwrap_or_default());
                let bandwidth = bandwidth(row);
                let mut line = format!("{what}: {bandwidth}p50 {p50}, verified");
                if !row.flags.is_empty() {
                    line.push_str(&format!(" [{}]", row.flags));
                }
                if self.verbosity == Verbosity::Verbose {
                    line.push_str(&how(row));
                }
                line
            }
            status => format!("{what}: {}: {}", words::status(status), row.reason),
        }
    }
}

/// A bar on standard error; hidden if `is_quiet`, or if no terminal can redraw a line. A template
/// ends with a message that takes the rest of the line: a line that wraps cannot be redrawn.
fn bar(count: usize, is_quiet: bool, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(count as u64);
    let is_dumb = env::var_os("TERM").is_some_and(|name| name == "dumb");
    if is_quiet || is_dumb || !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The bandwidth with its interval, for a row that has one.
fn bandwidth(row: &Row) -> String {
    let Some(rate) = row.bandwidth_gb_s.map(words::gb_s) else { return String::new() };
    match words::interval(row) {
        Some(interval) => format!("{rate} ({interval}), "),
        None => format!("{rate}, "),
    }
}

/// The runs of a sweep: a bar on a terminal, a line a run in a log, nothing when quiet.
#[derive(Debug)]
pub(crate) struct Runs {
    bar: ProgressBar,
    count: usize,
    is_quiet: bool,
}

impl Runs {
    /// For a sweep of `count` runs.
    pub(crate) fn new(count: usize, is_quiet: bool) -> Self {
        Self { bar: bar(count, is_quiet, "{bar:20} {wide_msg}"), count, is_quiet }
    }

    /// Another run begins.
    pub(crate) fn begin(&self, what: &str) {
        let done = usize::try_from(self.bar.position()).unwrap_or(usize::MAX);
        let left = self.bar.elapsed().as_secs_f64() / done as f64 * (self.count - done) as f64;
        let left = match done {
            0 => String::new(),
            _ => format!(", about {} left", readable_wait(left)),
        };
        let line = format!("run {} of {}{left}: {what}", done + 1, self.count);
        if self.bar.is_hidden() && !self.is_quiet {
            say(&line);
        } else {
            self.bar.set_message(visible(&line).into_owned());
        }
    }

    /// The run has ended, or failed for a reason.
    pub(crate) fn end(&self, failure: Option<&str>) {
        if let Some(reason) = failure {
            let line = format!("error: {reason}");
            if self.bar.is_hidden() { say(&line) } else { self.bar.println(visible(&line)) }
        }
        self.bar.inc(1);
    }

    /// All have ended.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// `40 s`, `3 min`, `2.5 h`
pub(crate) fn readable_wait(seconds: f64) -> String {
    match seconds {
        ..90.0 => format!("{seconds:.0} s"),
        ..5400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// How a row was measured.
fn how(row: &Row) -> String {
    let samples = row.bandwidth_samples.zip(row.operations_per_sample);
    let samples =
        samples.map(|(count, operations)| format!("{count} samples of {operations} operations"));
    let latencies = row.latency_samples.map(|count| format!("{count} latencies"));
    let slots =
        row.slots.zip(row.slot_bytes).map(|(slots, size)| format!("{slots} slots of {size}"));
    let parts: Vec<String> = [samples, latencies, slots].into_iter().flatten().collect();
    format!("; {}", parts.join(", "))
}
