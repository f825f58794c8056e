//! Results of other programs, read as rows of our own: the text and the JSON of nccl-tests and of
//! nvbandwidth, the text of fabtests and of OSU's micro-benchmarks.
//!
//! Owns the forms of those files. A row has what the file says and nothing else; `docs/formats.md`
//! documents where each column goes. What is damaged or no row is counted and named.

mod fabtests;
mod json;
mod nccl_tests;
mod number;
mod nvbandwidth;
mod osu;

use std::{borrow::Cow, sync::LazyLock};

use regex::Regex;

use super::Row;
use crate::units::count;

/// The flag of a row whose data nobody has compared, as far as the file says.
const UNVERIFIED: &str = "unverified";

/// The flag of a row whose median latency is a mean, since the file has no median.
const MEAN_LATENCY: &str = "mean_latency";

/// Reasons that are kept; more are counted.
const REASONS_MAX: usize = 5;

/// Characters of a version.
const VERSION_MAX: usize = 40;

/// Characters of a line that a reason quotes.
const QUOTED_MAX: usize = 60;

/// A program whose results can be read.
struct Program {
    name: &'static str,
    /// Its name, and which of its forms where it has several.
    described: &'static str,
    /// Reads its text, if it has one and this line is its own.
    reader: fn(&str) -> Option<Box<dyn Reader>>,
}

/// All of them.
const PROGRAMS: &[&Program] =
    &[&nccl_tests::PROGRAM, &nvbandwidth::PROGRAM, &osu::PROGRAM, &fabtests::PROGRAM];

/// What was read beside the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// What wrote the file; empty until that is known.
    pub tool: &'static str,
    /// Its version, where the file says so.
    pub version: Option<String>,
    /// The version of the library that it measured, where the file says so: `NCCL 2.32.3`.
    pub library: Option<String>,
    /// Rows that were read.
    pub rows: usize,
    /// Lines or results that would be rows and are damaged, or have no counterpart here.
    pub left_out: usize,
    /// Why, of the first of them.
    pub reasons: Vec<String>,
    /// What the file says of the whole run: that it was cut off, or ended with an error.
    pub notes: Vec<String>,
}

impl Imported {
    /// A sentence for each thing that the rows do not show.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.notes.clone();
        if self.left_out > 0 {
            let what = count(self.left_out, "result");
            let are = if self.left_out == 1 { "is" } else { "are" };
            let reasons = self.reasons.join("; ");
            let more = if self.left_out > self.reasons.len() { "; …" } else { "" };
            remarks.push(format!("{what} of {} {are} left out: {reasons}{more}", self.tool));
        }
        remarks
    }
}

/// A file whose rows cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing in it is of a program that is known.
    #[error(
        "it is not the output of {}: keep the lines above the table, by which each is known",
        known()
    )]
    Unknown,
    /// It is of a program that is known, and has no row.
    #[error("it has no result of {tool} that can be read: {reason}")]
    NoRow {
        /// What wrote the file.
        tool: &'static str,
        /// Why not.
        reason: String,
    },
}

/// Reads the results that any known program wrote, and passes on each row as it is read.
///
/// # Errors
///
/// There is no row in it.
pub fn read(bytes: &[u8], row: &mut dyn FnMut(Row)) -> Result<Imported, Error> {
    let mut sink = Sink { row, about: Imported::default() };
    match json::beginning(bytes) {
        Some(bytes) => json::read(bytes, &mut sink),
        None => text(bytes, &mut sink),
    }
    let Imported { tool, version, rows, reasons, notes, .. } = &mut sink.about;
    if tool.is_empty() {
        return Err(Error::Unknown);
    }
    if *rows == 0 {
        let nothing = || "it ends before the first one".to_owned();
        let reason = notes.first().or(reasons.first()).cloned().unwrap_or_else(nothing);
        return Err(Error::NoRow { tool, reason });
    }
    *version = version.take().map(|version| plain(&version, VERSION_MAX));
    Ok(sink.about)
}

/// Where rows go, and what was read beside them.
struct Sink<'a> {
    row: &'a mut dyn FnMut(Row),
    about: Imported,
}

impl Sink<'_> {
    fn row(&mut self, row: Row) {
        self.about.rows += 1;
        (self.row)(Row { case: self.about.rows, ..row });
    }

    fn leave_out(&mut self, reason: impl FnOnce() -> String) {
        self.about.left_out += 1;
        if self.about.reasons.len() < REASONS_MAX {
            self.about.reasons.push(reason());
        }
    }
}

/// Reads what a program prints.
trait Reader {
    /// Takes the next line; `Err` says why what would be a row is none.
    fn line(&mut self, line: &str, sink: &mut Sink<'_>) -> Result<(), String>;

    /// Takes the end of the file.
    fn end(&mut self, _: &mut Sink<'_>) {}
}

/// Reads lines, if they are of a program that is known.
fn text(bytes: &[u8], sink: &mut Sink<'_>) {
    let Some((tool, mut reader)) = lines(bytes).find_map(|line| reader(&line)) else { return };
    sink.about.tool = tool;
    for (number, line) in (1..).zip(lines(bytes)) {
        if let Err(reason) = reader.line(&line, sink) {
            sink.leave_out(|| format!("line {number}: {reason}"));
        }
    }
    reader.end(sink);
}

/// The program that prints such a line, and the reader of its text.
fn reader(line: &str) -> Option<(&'static str, Box<dyn Reader>)> {
    PROGRAMS.iter().find_map(|program| Some((program.name, (program.reader)(line)?)))
}

/// What can be read: `nccl-tests (text, or -J), …`.
fn known() -> String {
    let described: Vec<&str> = PROGRAMS.iter().map(|program| program.described).collect();
    described.join(", ")
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = Cow<'_, str>> {
    bytes.split(|&byte| byte == b'\n').map(|line| match String::from_utf8_lossy(line) {
        Cow::Borrowed(line) => Cow::Borrowed(untagged(line)),
        Cow::Owned(line) => Cow::Owned(untagged(&line).to_owned()),
    })
}

/// The prefix of a launcher: `[1,0]<stdout>: ` of `mpirun --tag-output`, `0: ` of `srun --label`.
static TAG: LazyLock<Regex> = LazyLock::new(|| {
    let tag = r"^(?:\[[0-9,]*\]<std.*?>: ?|\s*[0-9]+: )";
    Regex::new(tag).expect("a test matches it")
});

/// The line without the prefix of a launcher and trailing space.
fn untagged(line: &str) -> &str {
    let line = line.trim_end();
    TAG.find(line).map_or(line, |tag| &line[tag.end()..])
}

/// The words of a row, which are as many as its table has columns.
fn words(line: &str, columns: usize) -> Result<Vec<&str>, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.len() == columns {
        return Ok(words);
    }
    Err(format!("{} has {} of {columns}", quoted(line), count(words.len(), "column")))
}

/// The beginning of a line for a sentence.
fn quoted(line: &str) -> String {
    // A line can be as long as the file.
    let text = plain(line.trim_start(), 2 * QUOTED_MAX);
    let text = text.split_whitespace().collect::<Vec<&str>>().join(" ");
    let more = if text.chars().nth(QUOTED_MAX).is_some() { "…" } else { "" };
    format!("`{}{more}`", text.chars().take(QUOTED_MAX).collect::<String>())
}

/// So many characters of a text, without what a terminal would obey.
fn plain(text: &str, most: usize) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.chars().map(plain).take(most).collect()
}

/// Whether a line begins as a row does: with a number.
fn begins_with_number(line: &str) -> bool {
    line.trim_start().starts_with(|letter: char| letter.is_ascii_digit())
}

#[cfg(test)]
mod tests;
