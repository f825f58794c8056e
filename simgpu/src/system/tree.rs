//! A tree of files.

use std::{collections::BTreeMap, fmt::Display, iter};

use serde::Serialize;

/// As many links as the kernel follows on the way to a file.
const LINKS_MAX: usize = 40;

/// What lies at a path. Folders follow from the paths; an empty one is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Entry {
    /// A file.
    Text(String),
    /// A symbolic link.
    Link(String),
    /// A folder.
    Folder,
    /// A file that only root may read.
    Denied,
    /// A file whose text changes.
    Live,
}

/// Files by their paths.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Tree(pub BTreeMap<String, Entry>);

impl Tree {
    /// A file of one line.
    pub(super) fn line(&mut self, path: impl Into<String>, line: impl Display) {
        self.text(path, format!("{line}\n"));
    }

    /// A file.
    pub(super) fn text(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.0.insert(path.into(), Entry::Text(text.into()));
    }

    /// A link with this target.
    pub(super) fn link(&mut self, path: impl Into<String>, target: impl Into<String>) {
        self.0.insert(path.into(), Entry::Link(target.into()));
    }

    /// A link as the kernel makes it in `/sys`: to an absolute path, by way of the folders above.
    pub(super) fn point(&mut self, path: impl Into<String>, to: &str) {
        let path = path.into();
        let from: Vec<&str> = path.split('/').collect();
        let to: Vec<&str> = to.split('/').collect();
        let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        // The link itself is no folder to leave.
        let up = iter::repeat_n("..", (from.len() - 1).saturating_sub(common));
        let way: Vec<&str> = up.chain(to[common..].iter().copied()).collect();
        let target = way.join("/");
        self.link(path, target);
    }

    /// A folder that may be empty.
    pub(super) fn folder(&mut self, path: impl Into<String>) {
        self.0.insert(path.into(), Entry::Folder);
    }

    /// A file whose text is asked for each time.
    pub(super) fn live(&mut self, path: impl Into<String>) {
        self.0.insert(path.into(), Entry::Live);
    }

    /// A file that only root may read.
    pub(super) fn denied(&mut self, path: impl Into<String>) {
        self.0.insert(path.into(), Entry::Denied);
    }

    /// Takes a path away, and all below it.
    pub(super) fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.0.retain(|other, _| other != path && !other.starts_with(&below));
    }

    /// A path without links in the folders that lead to it; the same path where they lead nowhere.
    pub(super) fn resolve_folder(&self, path: &str) -> String {
        let Some((folder, name)) = path.rsplit_once('/') else { return path.to_owned() };
        match self.resolve(folder) {
            Some(folder) => format!("{folder}/{name}"),
            None => path.to_owned(),
        }
    }

    /// A path without links; `None` where they are a circle.
    pub(super) fn resolve(&self, path: &str) -> Option<String> {
        let mut rest: Vec<&str> = path.rsplit('/').filter(|part| !part.is_empty()).collect();
        let mut place = String::new();
        let mut links = 0;
        while let Some(part) = rest.pop() {
            if part == ".." {
                place.truncate(place.rfind('/').unwrap_or(0));
                continue;
            }
            let next = format!("{place}/{part}");
            let Some(Entry::Link(target)) = self.0.get(&next) else {
                place = next;
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            if target.starts_with('/') {
                place.clear();
            }
            rest.extend(target.rsplit('/').filter(|part| !part.is_empty()));
        }
        Some(place)
    }
}
