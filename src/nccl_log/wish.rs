//! What variables demand of NCCL's path, as far as a log can contradict it.

use super::{
    model::{Choice, End, Link, Transport},
    summary::Path,
};

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes(Vec<Wish>);

/// What one variable asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    /// The variable as it was set.
    text: String,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// No pair of ranks goes over this path.
    No(Path),
    /// Pairs of a host go over each other's memory.
    P2pWithinHosts,
    /// The target reads over P2P; otherwise the source writes.
    Reads(bool),
    /// No operation goes over NVLink SHARP.
    NoNvls,
    /// The network has this in its name, or not.
    Network { name: String, is_wanted: bool },
    /// Operations go by one of these algorithms, or by none of them.
    Algorithms(Vec<List>),
    /// The same of protocols.
    Protocols(Vec<List>),
}

/// Some words, for all functions or for one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct List {
    function: Option<String>,
    words: Vec<String>,
    excludes: bool,
}

impl Wishes {
    /// What these variables ask for, each a name and its value. Others, and values that NCCL reads
    /// as nothing, ask for nothing.
    pub fn of<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let wish = |(name, value): (&str, &str)| {
            Some(Wish { text: format!("{name}={value}"), what: what(name, value.trim())? })
        };
        Self(variables.into_iter().filter_map(wish).collect())
    }

    /// The first wish that a connection does not fulfil, with what was asked for.
    pub(super) fn against_link(&self, link: &Link) -> Option<&str> {
        // The end that receives says the same as the other.
        let is_against = |wish: &&Wish| match (&wish.what, &link.transport) {
            (What::No(path), transport) => transport.path() == *path,
            (What::P2pWithinHosts, Transport::Shm { .. }) => true,
            (What::Reads(reads), Transport::P2p { read, .. }) => reads != read,
            (What::Network { name, is_wanted }, Transport::Net { plugin, .. }) => {
                let (plugin, name) = (plugin.to_lowercase(), name.to_lowercase());
                (name.contains(&plugin) || plugin.contains(&name)) != *is_wanted
            }
            _ => false,
        };
        let is_told_twice = link.end == Some(End::Receive);
        self.0.iter().find(is_against).filter(|_| !is_told_twice).map(|wish| wish.text.as_str())
    }

    /// The same of what was chosen for an operation.
    pub(super) fn against_choice(&self, choice: &Choice) -> Option<&str> {
        let is_nvls = choice.algorithm.starts_with("NVLS");
        let is_against = |wish: &&Wish| match &wish.what {
            // NVLink SHARP takes each other's memory.
            What::No(Path::P2p) | What::NoNvls => is_nvls,
            What::Algorithms(lists) => !allows(lists, choice, &choice.algorithm),
            What::Protocols(lists) => !allows(lists, choice, &choice.protocol),
            _ => false,
        };
        self.0.iter().find(is_against).map(|wish| wish.text.as_str())
    }
}

fn what(name: &str, value: &str) -> Option<What> {
    let number = value.parse::<i64>().ok();
    let is_on = number.map(|number| number != 0);
    match name {
        "NCCL_P2P_DISABLE" if is_on? => Some(What::No(Path::P2p)),
        "NCCL_P2P_LEVEL" if value == "LOC" || number == Some(0) => Some(What::No(Path::P2p)),
        "NCCL_P2P_LEVEL" if value == "SYS" || number >= Some(5) => Some(What::P2pWithinHosts),
        "NCCL_P2P_READ_ENABLE" => is_on.map(What::Reads),
        "NCCL_SHM_DISABLE" if is_on? => Some(What::No(Path::Shm)),
        "NCCL_NVLS_ENABLE" if !is_on? => Some(What::NoNvls),
        "NCCL_IB_DISABLE" if is_on? => {
            Some(What::Network { name: "IB".to_owned(), is_wanted: false })
        }
        "NCCL_NET" if !value.is_empty() => {
            Some(What::Network { name: value.to_owned(), is_wanted: true })
        }
        "NCCL_ALGO" => lists(value).map(What::Algorithms),
        "NCCL_PROTO" => lists(value).map(What::Protocols),
        _ => None,
    }
}

/// `ring,tree`, `^tree`, or such lists for functions: `allreduce:ring;broadcast:^tree`.
fn lists(value: &str) -> Option<Vec<List>> {
    let list = |text: &str| {
        let (function, words) = match text.split_once(':') {
            Some((function, words)) => (Some(plain(function)), words),
            None => (None, text),
        };
        let (excludes, words) = match words.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, words),
        };
        let words: Vec<String> =
            words.split(',').map(plain).filter(|word| !word.is_empty()).collect();
        List { function, words, excludes }
    };
    let lists: Vec<List> = value.split(';').map(list).collect();
    let has_words = lists.iter().all(|list| !list.words.is_empty());
    has_words.then_some(lists)
}

/// Whether the lists let `word` be chosen; the last that is about the function counts.
fn allows(lists: &[List], choice: &Choice, word: &str) -> bool {
    let function = choice.function.as_deref().map(plain);
    let is_about = |list: &&List| list.function.is_none() || list.function == function;
    // Older versions do not name the function: any list may be the one.
    let is_unnamed = function.is_none() && lists.iter().any(|list| list.function.is_some());
    let list = lists.iter().rev().find(is_about);
    list.is_none_or(|list| is_unnamed || list.words.contains(&plain(word)) != list.excludes)
}

/// Capitals and underscores do not tell words apart: `NVLS_TREE` is `NVLSTree`.
fn plain(word: &str) -> String {
    word.chars().filter(|letter| *letter != '_').flat_map(char::to_uppercase).collect()
}
