//! NCCL's log (`NCCL_DEBUG=INFO`) as facts: who is on which host, who reaches whom by what, which
//! algorithm and protocol were chosen, what the network plugin says, and what went wrong.
//!
//! Reads NCCL 2.18 to 2.32, line by line, from anything: lines may be joined, cut, not UTF-8, of
//! many ranks at once. Text of no known form is ignored.

mod collect;
pub mod explain;
mod line;
mod message;
mod model;
mod summary;
mod warning;
mod wish;

use std::{
    io::{self, BufRead},
    sync::LazyLock,
};

use regex::Regex;

pub use model::{
    ChannelCounts, Choice, Communicator, End, Graph, Link, Log, Member, NvlsSupport, Origin,
    P2pKind, Place, Plugin, Process, RingsUse, Told, Transport, Variable, Warning, WarningKind,
};
pub(crate) use summary::number_ranges;
pub use summary::{Asked, Path, PathVerdict, Summary, Verdict};
pub use wish::Wishes;

use collect::Collector;
use line::{Hosts, Level};
use message::Fact;

/// Letters that are kept of what other programs write.
const OTHER_LETTERS_MAX: usize = 200;

/// A version that NCCL prints by itself (`NCCL_DEBUG=VERSION`), and variables as shells print them.
static OTHER_TEXT: LazyLock<[Regex; 2]> = LazyLock::new(|| {
    let forms = [
        r"NCCL version ([0-9]+\.[0-9]+\.[0-9]+[A-Za-z0-9.+_-]*)",
        r#"\b(NCCL_[A-Z0-9_]+)=["']?([^\s"']*)"#,
    ];
    forms.map(|form| Regex::new(form).expect("a test matches it"))
});

/// Reads logs, one after the other.
#[derive(Default)]
pub struct Reader {
    collector: Collector,
    hosts: Hosts,
}

impl Reader {
    /// Reads one log to its end; `name` names it in places.
    pub fn read(&mut self, name: &str, mut from: impl BufRead) -> io::Result<()> {
        let log = &mut self.collector.log;
        let file = u32::try_from(log.files.len()).unwrap_or(u32::MAX);
        log.files.push(name.to_owned());
        let mut bytes = Vec::new();
        let mut line = 0;
        while let Some(is_whole) = line::next(&mut from, &mut bytes)? {
            line += 1;
            self.collector.log.lines += 1;
            self.collector.log.cut_lines += u64::from(!is_whole);
            let at = Place { file, line };
            let text = String::from_utf8_lossy(&bytes);
            // A progress bar returns to the start of its line.
            let parts: Vec<&str> = text.split('\r').collect();
            let last = parts.iter().rposition(|part| !part.is_empty());
            for (index, part) in parts.into_iter().enumerate() {
                self.part(part, at, !is_whole && Some(index) == last);
            }
        }
        Ok(())
    }

    /// What all logs say.
    #[must_use]
    pub fn finish(self) -> Log {
        self.collector.log
    }

    fn part(&mut self, text: &str, at: Place, is_cut: bool) {
        if text.is_empty() {
            return;
        }
        let messages = self.hosts.messages(text);
        let count = messages.len();
        for (index, message) in messages.iter().enumerate() {
            let fact = match message.level {
                None => {
                    self.other_text(message.text, at);
                    None
                }
                Some(Level::Trace) => None,
                Some(Level::Info | Level::Warn) => message::read(message.text, at),
            };
            // A channel's line that is cut may lack its last words.
            let is_cut = is_cut && index + 1 == count;
            let fact = fact.filter(|fact| !(is_cut && matches!(fact, Fact::Channel(_))));
            self.collector.add(message, fact, at);
        }
    }

    fn other_text(&mut self, text: &str, at: Place) {
        let [version, variable] = &*OTHER_TEXT;
        if let Some(captures) = version.captures(text) {
            let version = captures[1].chars().take(OTHER_LETTERS_MAX).collect();
            message::told(&mut self.collector.log.versions, version, at);
        }
        for captures in variable.captures_iter(text) {
            let short = |text: &str| text.chars().take(OTHER_LETTERS_MAX).collect::<String>();
            let (name, value) = (short(&captures[1]), short(&captures[2]));
            let origin = Origin::OtherText;
            self.collector.variable(Variable { name, value, origin, at });
        }
    }
}

#[cfg(test)]
mod tests;
