//! The path in a few words, and whether it is the one that was asked for.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    model::{Choice, Communicator, End, Link, Log, Place, Transport},
    wish::Wishes,
};
use crate::units::Bytes;

/// A way between two GPUs, as a user asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Each other's memory.
    P2p,
    /// Host memory.
    Shm,
    /// The network.
    Net,
}

/// What a log is worth as a proof.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All ranks say that it was this path.
    Proven,
    /// A line says that it was another.
    Contradicted,
    /// The log does not say, or not for all ranks.
    #[default]
    Unknown,
}

/// An operation that something is asked of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// NCCL's name of the function, such as `AllReduce`.
    pub function: &'static str,
    /// What NCCL is called with: elements of one rank, or of what each rank gets from another.
    pub count: Bytes,
    /// Bytes of the larger of a rank's two buffers.
    pub size: Bytes,
}

impl Asked {
    fn is_it(&self, choice: &Choice) -> bool {
        let is_named = choice.function.as_deref().is_none_or(|name| name == self.function);
        // The form with channels has the count, older ones have the size.
        let told = if choice.channels.is_some() { self.count } else { self.size };
        is_named && told.get() == choice.size_bytes
    }
}

/// Whether the path was the one that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathVerdict {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, as a sentence.
    pub reason: String,
    /// The line that it rests on.
    pub at: Option<Place>,
}

/// The path in a few words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The transports with their channels, such as `P2P/CUMEM/read x24`; `NVLS` where that was
    /// chosen.
    pub transports: Vec<String>,
    /// The algorithm chosen for the size, such as `RING`; several with `+`.
    pub algorithm: Option<String>,
    /// The protocol chosen for the size.
    pub protocol: Option<String>,
    /// libfabric's provider.
    pub provider: Option<String>,
    /// aws-ofi-nccl's protocol.
    pub plugin_protocol: Option<String>,
}

impl Transport {
    /// The path that it is.
    #[must_use]
    pub const fn path(&self) -> Path {
        match self {
            Self::P2p { .. } => Path::P2p,
            Self::Shm { .. } => Path::Shm,
            Self::Net { .. } | Self::CollNet { .. } => Path::Net,
        }
    }

    /// NCCL's words without the rank in between, of which each pair may have another.
    #[must_use]
    pub fn words(&self) -> String {
        let mut plain = self.clone();
        match &mut plain {
            Self::P2p { through, .. } => *through = None,
            Self::Net { proxy, .. } => {
                if proxy.take().is_some() {
                    return format!("{plain} by PXN");
                }
            }
            Self::Shm { .. } | Self::CollNet { .. } => {}
        }
        plain.to_string()
    }
}

impl Link {
    /// The rank that wrote its lines.
    #[must_use]
    pub const fn writer(&self) -> u32 {
        match (self.end, self.target) {
            (Some(End::Receive), Some(target)) => target,
            _ => self.source,
        }
    }
}

impl Communicator {
    /// The ranks that the log says nothing of, as far as their number is known.
    #[must_use]
    pub fn missing(&self) -> Vec<u32> {
        // More ranks than any machine has would be a long list.
        let ranks = self.ranks.unwrap_or(0).min(1 << 20);
        (0..ranks).filter(|rank| !self.members.contains_key(rank)).collect()
    }

    /// The ranks that have written no line of a channel.
    fn silent(&self) -> Vec<u32> {
        let writers: BTreeSet<u32> = self.links.iter().map(Link::writer).collect();
        let ranks = self.ranks.unwrap_or(0).min(1 << 20);
        (0..ranks).filter(|rank| !writers.contains(rank)).collect()
    }
}

impl Log {
    /// Keeps only the communicators that appear after a given line of their file. `lines` has these
    /// lines, in the order of the files.
    pub fn keep_behind(&mut self, lines: &[u64]) {
        let begin = |file: u32| lines.get(file as usize).copied().unwrap_or(0);
        self.communicators
            .retain(|communicator| communicator.at.line > begin(communicator.at.file));
    }

    /// The links of all communicators.
    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.communicators.iter().flat_map(|communicator| &communicator.links)
    }

    /// What was chosen for the operations of all communicators.
    pub(super) fn choices(&self) -> impl Iterator<Item = &Choice> {
        self.communicators.iter().flat_map(|communicator| &communicator.choices)
    }

    /// The path in a few words, with what was chosen for an operation, or for all.
    #[must_use]
    pub fn summary(&self, of: Option<&Asked>) -> Summary {
        let mut channels: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for link in self.links() {
            channels.entry(link.transport.words()).or_default().extend(&link.channels);
        }
        let counted = channels.iter().map(|(words, list)| format!("{words} x{}", list.len()));
        let mut transports: Vec<String> = counted.collect();
        if self.chosen(of).any(|choice| choice.algorithm.starts_with("NVLS")) {
            transports.push("NVLS".to_owned());
        }
        let distinct = |word: fn(&Choice) -> &str| {
            let mut once: Vec<&str> = Vec::new();
            for word in self.chosen(of).map(word) {
                if !once.contains(&word) {
                    once.push(word);
                }
            }
            (!once.is_empty()).then(|| once.join("+"))
        };
        let plugin = self.plugin.as_ref();
        let value = |told: Option<&super::Told>| told.map(|told| told.value.clone());
        Summary {
            transports,
            algorithm: distinct(|choice| &choice.algorithm),
            protocol: distinct(|choice| &choice.protocol),
            provider: value(plugin.and_then(|plugin| plugin.provider.as_ref())),
            plugin_protocol: value(plugin.and_then(|plugin| plugin.protocol.as_ref())),
        }
    }

    /// What was chosen for an operation, or for all.
    fn chosen<'a>(&'a self, of: Option<&'a Asked>) -> impl Iterator<Item = &'a Choice> {
        self.choices().filter(move |choice| of.is_none_or(|of| of.is_it(choice)))
    }

    /// Whether the data went where it was asked to go, and the operation as it was asked to;
    /// without wishes, whether the log says for all ranks where it went.
    #[must_use]
    pub fn path_verdict(&self, of: Option<&Asked>, wishes: &Wishes) -> PathVerdict {
        let contradicted =
            |reason, at| PathVerdict { verdict: Verdict::Contradicted, reason, at: Some(at) };
        let against = |link| Some((link, wishes.against_link(link)?));
        if let Some((link, wish)) = self.links().find_map(against) {
            let target = link.target.map_or_else(String::new, |rank| format!(" to {rank}"));
            let reason = format!(
                "{wish} was set, and rank {}{target} went over {}",
                link.source, link.transport
            );
            return contradicted(reason, link.first);
        }
        let against = |choice| Some((choice, wishes.against_choice(choice)?));
        if let Some((choice, wish)) = self.chosen(of).find_map(against) {
            let reason = format!(
                "{wish} was set, and NCCL chose {} with {} for {} bytes",
                choice.algorithm, choice.protocol, choice.size_bytes
            );
            return contradicted(reason, choice.at);
        }
        match self.gap() {
            Some(reason) => PathVerdict { verdict: Verdict::Unknown, reason, at: None },
            None => {
                let reason = format!("all ranks say {}", self.summary(of).transports.join(", "));
                let at = self.links().next().map(|link| link.first);
                PathVerdict { verdict: Verdict::Proven, reason, at }
            }
        }
    }

    /// What is missing for a proof.
    fn gap(&self) -> Option<String> {
        if self.messages == 0 {
            return Some("the log has no line of NCCL: set NCCL_DEBUG=INFO".to_owned());
        }
        if self.left_out > 0 {
            return Some("the log has more than can be kept".to_owned());
        }
        let is_alone = |communicator: &Communicator| communicator.ranks == Some(1);
        if !self.communicators.is_empty() && self.communicators.iter().all(is_alone) {
            return Some("one rank alone has nobody to send to".to_owned());
        }
        let used =
            || self.communicators.iter().filter(|communicator| !communicator.links.is_empty());
        if used().next().is_none() {
            return Some(
                "no channel is in the log: NCCL connects them at the first operation, so that the \
                 log of a run is needed"
                    .to_owned(),
            );
        }
        for communicator in used() {
            if communicator.ranks.is_none() {
                return Some("the log does not say which ranks there are".to_owned());
            }
            let silent = communicator.silent();
            if !silent.is_empty() {
                return Some(format!(
                    "the channels of {} are not in the log",
                    ranks_named(&silent)
                ));
            }
        }
        None
    }
}

/// `rank 3`, or of several with ranges.
pub(super) fn ranks_named(ranks: &[u32]) -> String {
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", number_ranges(ranks))
}

/// Ranges that are written out.
const RANGES_MAX: usize = 8;

/// Numbers in order as ranges, such as `0-3,7`; of many the first.
pub(crate) fn number_ranges(numbers: &[u32]) -> String {
    let range = |run: &[u32]| match run {
        [first, last] => format!("{first},{last}"),
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(u32::to_string).collect(),
    };
    let runs = numbers.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let mut ranges: Vec<String> = runs.take(RANGES_MAX + 1).map(range).collect();
    if ranges.len() > RANGES_MAX {
        ranges[RANGES_MAX] = "…".to_owned();
    }
    ranges.join(",")
}
