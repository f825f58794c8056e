//! An explanation for a person: what NCCL found, what it used, what is wrong, in this order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::{Explanation, Finding, Weight, count};
use crate::nccl_log::{Communicator, Link, Log, Place, Told, Verdict, number_ranges};
use crate::units::Bytes;

/// Members of a list that are written out.
const LISTED_MAX: usize = 8;

pub(super) fn text(explanation: &Explanation) -> String {
    let log = &explanation.log;
    let mut text = String::new();
    line(&mut text, "", &heading(log));
    let sections = [("Ranks", ranks(log)), ("Paths", paths(log)), ("Algorithms", choices(log))];
    for (title, lines) in sections.into_iter().filter(|(_, lines)| !lines.is_empty()) {
        let _ = write!(text, "\n{title}\n");
        for each in lines {
            line(&mut text, "  ", &each);
        }
    }
    for (weight, title) in [(Weight::Problem, "Problems"), (Weight::Note, "Notes")] {
        let of_weight = explanation.findings.iter().filter(|finding| finding.weight == weight);
        for (index, finding) in of_weight.enumerate() {
            if index == 0 {
                let _ = write!(text, "\n{title}\n");
            }
            add_finding(&mut text, log, finding);
        }
    }
    let path = &explanation.path;
    let proof = match path.verdict {
        Verdict::Proven => "proven",
        Verdict::Contradicted => "contradicted",
        Verdict::Unknown => "not proven",
    };
    text.push('\n');
    line(&mut text, "", &format!("The way of the data is {proof}: {}.", path.reason));
    text
}

fn add_finding(text: &mut String, log: &Log, finding: &Finding) {
    let sentence = upper(&finding.says);
    line(text, "- ", &format!("{sentence}{}.", places(log, &finding.at)));
    if let Some(because) = &finding.because {
        line(text, "  ", &format!("Why: {because}."));
    }
    if let Some(remedy) = &finding.remedy {
        line(text, "  ", &format!("What to change: {remedy}."));
    }
}

/// Begins with a capital, unless it begins with a name.
pub(crate) fn upper(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let is_name = sentence.starts_with("aws-") || sentence.starts_with("libfabric");
    match letters.next() {
        Some(first) if !is_name => first.to_uppercase().chain(letters).collect(),
        _ => sentence.to_owned(),
    }
}

fn heading(log: &Log) -> String {
    let files = match &log.files[..] {
        [file] => printable(file),
        files => count(files.len(), "file"),
    };
    let mut heading = format!(
        "{files}: {}, {} of NCCL",
        count(log.lines, "line"),
        count(log.messages, "message")
    );
    let versions = values(&log.versions);
    if !versions.is_empty() {
        let _ = write!(heading, " {}", versions.join(" and "));
    }
    let drivers = values(&log.drivers);
    if !drivers.is_empty() {
        let _ = write!(heading, ", driver of CUDA {}", drivers.join(" and "));
    }
    if let Some(plugin) = &log.plugin {
        let named = [("aws-ofi-nccl", &plugin.version), ("libfabric", &plugin.libfabric)];
        for (name, told) in named {
            if let Some(told) = told {
                let _ = write!(heading, ", {name} {}", told.value);
            }
        }
        if let Some(platform) = &plugin.platform {
            let _ = write!(heading, ", on {}", platform.value);
        }
    }
    heading
}

fn values(told: &[Told]) -> Vec<&str> {
    told.iter().map(|told| told.value.as_str()).collect()
}

/// What makes communicators alike for a person.
fn shape(communicator: &Communicator) -> (Option<u32>, Option<u32>, BTreeSet<Option<u32>>) {
    let local = communicator.members.values().map(|member| member.local_ranks).collect();
    (communicator.ranks, communicator.nodes, local)
}

fn ranks(log: &Log) -> Vec<String> {
    let mut by_shape: BTreeMap<_, Vec<&Communicator>> = BTreeMap::new();
    for communicator in &log.communicators {
        by_shape.entry(shape(communicator)).or_default().push(communicator);
    }
    let mut alike: Vec<Vec<&Communicator>> = by_shape.into_values().collect();
    alike.sort_by_key(|group| group[0].at);
    let mut lines = Vec::new();
    for group in alike.iter().take(LISTED_MAX) {
        let first = group[0];
        let Some(ranks) = first.ranks else {
            lines.push("ranks whose communicator is not in the log".to_owned());
            continue;
        };
        let communicators = count(group.len(), "communicator");
        let mut line = format!("{communicators} of {}", count(ranks, "rank"));
        if let Some(nodes) = first.nodes {
            let _ = write!(line, ", which NCCL takes for {}", count(nodes, "node"));
        }
        let local: BTreeSet<u32> =
            first.members.values().filter_map(|member| member.local_ranks).collect();
        if !local.is_empty() {
            let local: Vec<String> = local.iter().map(u32::to_string).collect();
            let _ = write!(line, " with {} each (localRanks)", local.join(" or "));
        }
        let places: Vec<Place> =
            group.iter().map(|same| same.layout_at.unwrap_or(same.at)).collect();
        line += &self::places(log, &places);
        lines.push(line);
        for (rank, member) in first.members.iter().take(LISTED_MAX) {
            let gpu = member.cuda_device.map_or_else(String::new, |gpu| format!(", GPU {gpu}"));
            let bus_id =
                member.bus_id.as_deref().map_or_else(String::new, |id| format!(" at {id}"));
            let process = &member.process;
            let line =
                format!("  rank {rank}: {}, process {}{gpu}{bus_id}", process.host, process.pid);
            lines.push(line);
        }
        if first.members.len() > LISTED_MAX {
            lines.push(format!("  and {} more", first.members.len() - LISTED_MAX));
        }
    }
    if alike.len() > LISTED_MAX {
        lines.push(format!("and {} more kinds of communicators", alike.len() - LISTED_MAX));
    }
    if lines.is_empty() {
        lines.push("no communicator is in the log".to_owned());
    }
    lines
}

/// Each transport with the pairs of ranks that use it.
fn paths(log: &Log) -> Vec<String> {
    let mut by_words: BTreeMap<String, Vec<&Link>> = BTreeMap::new();
    for link in log.links() {
        by_words.entry(link.transport.words()).or_default().push(link);
    }
    let mut lines = Vec::new();
    for (words, links) in by_words {
        let all: BTreeSet<(u32, Option<u32>)> =
            links.iter().map(|link| (link.source, link.target)).collect();
        let pair = |(source, target): &(u32, Option<u32>)| {
            target.map_or(format!("{source}"), |target| format!("{source}->{target}"))
        };
        let mut pairs: Vec<String> = all.iter().take(LISTED_MAX).map(pair).collect();
        if all.len() > LISTED_MAX {
            pairs.push(format!("{} more", all.len() - LISTED_MAX));
        }
        let channels: BTreeSet<u32> =
            links.iter().flat_map(|link| link.channels.iter().copied()).collect();
        let channels: Vec<u32> = channels.into_iter().collect();
        let first = links.iter().map(|link| link.first).min().unwrap_or_default();
        let last = links.iter().map(|link| link.last).max().unwrap_or_default();
        lines.push(format!(
            "{words}: between ranks {}, channel{} {}{}",
            pairs.join(" "),
            if channels.len() == 1 { "" } else { "s" },
            number_ranges(&channels),
            span(log, first, last)
        ));
    }
    if log.communicators.len() > 1 && log.links().any(|link| !link.is_certain) {
        lines.push(
            "(these lines do not name their communicator: those of a process that have the same \
             ranks are told as one)"
                .to_owned(),
        );
    }
    if lines.is_empty() {
        lines.push("no channel is in the log".to_owned());
    }
    lines
}

fn choices(log: &Log) -> Vec<String> {
    let mut chosen: BTreeMap<(&str, &str, &str), (u64, u64, Place)> = BTreeMap::new();
    for choice in log.choices() {
        let function = choice.function.as_deref().unwrap_or("operations");
        let key = (function, choice.algorithm.as_str(), choice.protocol.as_str());
        let size = choice.size_bytes;
        let (low, high, at) = chosen.entry(key).or_insert((size, size, choice.at));
        (*low, *high, *at) = (size.min(*low), size.max(*high), choice.at.min(*at));
    }
    let mut sorted: Vec<_> = chosen.into_iter().collect();
    sorted.sort_by_key(|((function, ..), (low, ..))| (*function, *low));
    sorted.truncate(4 * LISTED_MAX);
    let mut lines = Vec::new();
    for ((function, algorithm, protocol), (low, high, at)) in sorted {
        let sizes = match low == high {
            true => Bytes::new(low).to_string(),
            false => format!("{} to {}", Bytes::new(low), Bytes::new(high)),
        };
        lines.push(format!("{function} of {sizes}: {algorithm}, {protocol}{}", places(log, &[at])));
    }
    lines
}

/// ` (line 3)`, ` (lines 3, 9)`, with the files if there are several.
fn places(log: &Log, places: &[Place]) -> String {
    let mut once: Vec<Place> = places.to_vec();
    once.sort_unstable();
    once.dedup();
    let shown: Vec<String> = once.iter().take(LISTED_MAX).map(|&at| place(log, at)).collect();
    let more = if once.len() > LISTED_MAX { ", …" } else { "" };
    match &shown[..] {
        [] => String::new(),
        _ if log.files.len() > 1 => format!(" ({}{more})", shown.join(", ")),
        [line] => format!(" (line {line})"),
        lines => format!(" (lines {}{more})", lines.join(", ")),
    }
}

fn span(log: &Log, first: Place, last: Place) -> String {
    if log.files.len() > 1 || first == last {
        return places(log, &[first, last]);
    }
    format!(" (lines {} to {})", first.line, last.line)
}

fn place(log: &Log, at: Place) -> String {
    let file = usize::try_from(at.file).ok().and_then(|file| log.files.get(file));
    match file {
        Some(file) if log.files.len() > 1 => format!("{}:{}", printable(file), at.line),
        _ => at.line.to_string(),
    }
}

/// A log is written by anybody: what a terminal would obey is not passed on.
fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

/// Adds a line of `words` after `start`.
pub(crate) fn line(text: &mut String, start: &str, words: &str) {
    text.push_str(&format!("{start}{}\n", printable(words)));
}
