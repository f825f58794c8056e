//! What a person sees while it runs, on standard error.

use std::{
    io::{IsTerminal, Write},
    path::Path,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    plan::Case,
    record::{Row, Status},
    units::readable_nanoseconds,
};

/// A bar with the time left on a terminal, a line a row in a log, nothing when quiet.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    rows: usize,
    is_quiet: bool,
    /// Whether each row gets a line of its own.
    has_lines: bool,
    is_verbose: bool,
}

impl Progress {
    /// Of a run of `rows` rows.
    pub(crate) fn new(rows: usize, is_quiet: bool, is_verbose: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::new(rows as u64);
        if is_quiet || !is_terminal {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} rows, {eta} left  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let has_lines = !is_quiet && (is_verbose || !is_terminal);
        Self { bar, rows, is_quiet, has_lines, is_verbose }
    }

    /// `case` begins.
    pub(crate) fn begin(&self, case: &Case) {
        let (transport, pattern) = (case.transport.name(), case.pattern.name());
        self.bar.set_message(format!("{transport} {pattern} {}", case.size));
    }

    /// `row` is known.
    pub(crate) fn row(&self, row: &Row) {
        if self.has_lines {
            self.say(&format!("[{}/{}] {}", row.case, self.rows, self.line(row)));
        }
        self.bar.inc(1);
    }

    /// The run is over, and its files are in `folder`.
    pub(crate) fn finish(&self, folder: &Path) {
        self.bar.finish_and_clear();
        if !self.is_quiet {
            self.say(&format!("results: {}", folder.display()));
        }
    }

    fn say(&self, line: &str) {
        if self.bar.is_hidden() || self.bar.is_finished() {
            say(line);
        } else {
            self.bar.println(line);
        }
    }

    fn line(&self, row: &Row) -> String {
        let mut words = vec![row.transport.name().to_owned()];
        words.extend(row.pattern.map(str::to_owned));
        words.extend(row.size_bytes.map(|size| size.to_string()));
        let what = words.join(" ");
        let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
        match row.status {
            Status::Ok => {
                let mut line = format!(
                    "{what}: {:.3} GB/s ({:.3} to {:.3}), p50 {}, verified",
                    number(row.bandwidth_gb_s),
                    number(row.bandwidth_gb_s_low),
                    number(row.bandwidth_gb_s_high),
                    readable_nanoseconds(row.latency_ns_p50.unwrap_or_default()),
                );
                if !row.flags.is_empty() {
                    line.push_str(&format!(" [{}]", row.flags));
                }
                if self.is_verbose {
                    line.push_str(&how(row));
                }
                line
            }
            Status::Skipped => format!("{what}: skipped: {}", row.reason),
            Status::Corrupt => format!("{what}: CORRUPT: {}", row.reason),
            Status::Failed => format!("{what}: FAILED: {}", row.reason),
        }
    }
}

/// A line on standard error. If nobody reads there any more, the run goes on all the same.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// How a row was measured.
fn how(row: &Row) -> String {
    format!(
        "; {} samples of {} operations, {} latencies, {} slots of {}",
        row.bandwidth_samples.unwrap_or_default(),
        row.operations_per_sample.unwrap_or_default(),
        row.latency_samples.unwrap_or_default(),
        row.slots.unwrap_or_default(),
        row.slot_bytes.unwrap_or_default(),
    )
}
