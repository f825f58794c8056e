//! From bytes to messages: lines of bounded length, and what NCCL wrote in each.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Read},
    ops::Range,
    sync::LazyLock,
};

use regex::Regex;

use super::model::Process;

/// NCCL's own lines are 1 KiB at most in 2.18 and hardly longer since; rings of thousands of ranks
/// are the longest.
const LINE_BYTES_MAX: usize = 1 << 16;

/// Names of hosts that are remembered, to take joined lines apart.
const HOSTS_MAX: usize = 1 << 14;

/// The longest name of a host (DNS).
const HOST_LETTERS_MAX: usize = 253;

/// The prefix of each message: host, process, thread, GPU, place in the source, level.
/// NVIDIA/nccl, src/debug.cc, v2.18.6-1 to v2.30.7-1.
static PREFIX: LazyLock<Regex> = LazyLock::new(|| {
    let who = r"([A-Za-z0-9][A-Za-z0-9._-]*):([0-9]{1,10}):([0-9]{1,10}) ";
    let gpu = r"(?:\[(-?[0-9]{1,5})\] )?";
    let source = r"(?:[0-9.]+ )?(?:[A-Za-z0-9_./:~-]+:[0-9]{1,7} )?(?:\([^()]*\) )?";
    let level = r"NCCL (INFO|WARN|TRACE|CALL) ";
    Regex::new(&format!("{who}{gpu}{source}{level}")).expect("a test matches it")
});

/// A message whose prefix a filter has cut, so that its sender is unknown.
static BARE_LEVEL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"NCCL (INFO|WARN|TRACE) ").expect("a test matches it"));

/// How bad a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Info,
    Warn,
    /// Of no use here.
    Trace,
}

/// Who wrote a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    pub process: Process,
    pub thread: u64,
    /// CUDA's number of the current GPU.
    pub device: Option<u32>,
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub sender: Option<Sender>,
    /// `None`: text of another program.
    pub level: Option<Level>,
    pub text: &'a str,
}

/// Reads the next line into `line`, without its break and no more of it than is kept. Whether all
/// of it was there and kept; `None` at the end.
pub(super) fn next(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    if from.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', line)? == 0 {
        return Ok(None);
    }
    // Without a break its writer was stopped, or has not finished.
    let is_whole = line.pop_if(|last| *last == b'\n').is_some();
    if line.len() > LINE_BYTES_MAX {
        line.truncate(LINE_BYTES_MAX);
        from.skip_until(b'\n')?;
    }
    Ok(Some(is_whole))
}

/// The names of hosts that were seen at the beginning of lines.
#[derive(Default)]
pub(super) struct Hosts(BTreeSet<String>);

impl Hosts {
    /// The messages in `text`. Ranks that share an output can write into each other's lines, so
    /// that one line holds several.
    pub(super) fn messages<'a>(&mut self, text: &'a str) -> Vec<Message<'a>> {
        if !text.contains("NCCL ") {
            return vec![Message { sender: None, level: None, text }];
        }
        let mut found: Vec<(Range<usize>, Option<Sender>, Level)> = Vec::new();
        for captures in PREFIX.captures_iter(text) {
            let whole = captures.get_match();
            let field = |n: usize| captures.get(n).map_or("", |group| group.as_str());
            let (start, host) = self.host(text, whole.start(), field(1));
            let level = level(field(5));
            let (Ok(pid), Ok(thread)) = (field(2).parse(), field(3).parse()) else { continue };
            let process = Process { host, pid };
            let sender = Sender { process, thread, device: field(4).parse().ok() };
            found.push((start..whole.end(), Some(sender), level));
        }
        if found.is_empty() {
            for captures in BARE_LEVEL.captures_iter(text) {
                found.push((captures.get_match().range(), None, level(&captures[1])));
            }
        }
        let mut messages = Vec::new();
        let first = found.first().map_or(text.len(), |(range, ..)| range.start);
        if !text[..first].trim().is_empty() {
            messages.push(Message { sender: None, level: None, text: &text[..first] });
        }
        let ends: Vec<usize> = found.iter().skip(1).map(|(range, ..)| range.start).collect();
        for (index, (range, sender, level)) in found.into_iter().enumerate() {
            let end = ends.get(index).copied().unwrap_or(text.len());
            let text = text.get(range.end..end).unwrap_or_default();
            messages.push(Message { sender, level: Some(level), text });
        }
        messages
    }

    /// The name of the host and where it begins. Behind the end of another message, the longest
    /// name that is known.
    fn host(&mut self, text: &str, start: usize, name: &str) -> (usize, String) {
        let is_behind_other = text[..start].contains("NCCL ");
        if is_behind_other {
            let known = (1..name.len())
                .filter(|&cut| name.is_char_boundary(cut))
                .find(|&cut| self.0.contains(&name[cut..]));
            if !self.0.contains(name)
                && let Some(cut) = known
            {
                return (start + cut, name[cut..].to_owned());
            }
        } else if name.len() <= HOST_LETTERS_MAX
            && self.0.len() < HOSTS_MAX
            && !self.0.contains(name)
        {
            self.0.insert(name.to_owned());
        }
        (start, name.get(..HOST_LETTERS_MAX).unwrap_or(name).to_owned())
    }
}

fn level(word: &str) -> Level {
    match word {
        "INFO" => Level::Info,
        "WARN" => Level::Warn,
        _ => Level::Trace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> (Option<Sender>, Option<Level>, String) {
        let messages = Hosts::default().messages(text);
        let [message] = &messages[..] else { panic!("{messages:?}") };
        (message.sender.clone(), message.level, message.text.to_owned())
    }

    fn process(host: &str, pid: u64) -> Process {
        Process { host: host.to_owned(), pid }
    }

    #[test]
    fn every_form_of_prefix_is_read() {
        for (line, level, text) in [
            ("a-1:18:20 [3] NCCL INFO Using network IB", Level::Info, "Using network IB"),
            ("a-1:18:20 [3] init.cc:12 NCCL WARN oh", Level::Warn, "oh"),
            ("a-1:18:20 [3] src/init.cc:12 (ncclX) NCCL WARN oh", Level::Warn, "oh"),
            ("a-1:18:20 [3] 12.500000 f:9 NCCL TRACE x", Level::Trace, "x"),
        ] {
            let (sender, found, rest) = only(line);
            let sender = sender.unwrap();
            assert_eq!((sender.process, sender.thread), (process("a-1", 18), 20), "{line}");
            assert_eq!((sender.device, found, rest.as_str()), (Some(3), Some(level), text));
        }
    }

    #[test]
    fn what_stands_before_the_prefix_is_other_text() {
        for before in
            ["[2026-11-21 12:00:00] ", "rank0: ", "2026-11-21T01:02:03.4Z stdout F ", "é "]
        {
            let line = format!("{before}a:1:2 [0] NCCL INFO x");
            let messages = Hosts::default().messages(&line);
            assert_eq!(messages.len(), 2, "{before}");
            assert_eq!((messages[0].level, messages[1].text), (None, "x"));
        }
        let (sender, level, text) = only("NCCL INFO Using network IB");
        assert_eq!((sender, level, text.as_str()), (None, Some(Level::Info), "Using network IB"));
    }

    #[test]
    fn joined_lines_are_taken_apart() {
        let mut hosts = Hosts::default();
        hosts.messages("node-b:1:1 [0] NCCL INFO x");
        let line = "node-a:1:1 [0] NCCL INFO via P2P/CUMEMnode-b:7:8 [1] NCCL INFO y";
        let messages = hosts.messages(line);
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[0].text, "via P2P/CUMEM");
        assert_eq!(messages[1].sender.as_ref().unwrap().process, process("node-b", 7));
    }

    #[test]
    fn lines_are_bounded_and_the_last_may_be_cut() {
        let text = format!("a\r\n{}\nlast", "x".repeat(LINE_BYTES_MAX + 1));
        let mut rest = text.as_bytes();
        let mut line = Vec::new();
        assert_eq!(next(&mut rest, &mut line).unwrap(), Some(true));
        assert_eq!(line, b"a\r");
        assert_eq!(next(&mut rest, &mut line).unwrap(), Some(false));
        assert_eq!(line.len(), LINE_BYTES_MAX);
        assert_eq!(next(&mut rest, &mut line).unwrap(), Some(false));
        assert_eq!(line, b"last");
        assert_eq!(next(&mut rest, &mut line).unwrap(), None);
        let mut longest = [b'x'; LINE_BYTES_MAX + 1];
        longest[LINE_BYTES_MAX] = b'\n';
        assert_eq!(next(&mut &longest[..], &mut line).unwrap(), Some(true));
    }
}
