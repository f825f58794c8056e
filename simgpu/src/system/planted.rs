//! Files that a machine file describes, in place of those that would be there.

use super::tree::Tree;
use crate::machine::host::{Plant, Planted};

/// Puts what the process at this place sees into the tree, in the order of the file.
pub(super) fn plant(tree: &mut Tree, files: &[Planted], process: usize) {
    let seen = |file: &&Planted| file.process.is_none_or(|place| place as usize == process);
    for Planted { path, what, .. } in files.iter().filter(seen) {
        let place = tree.resolve_folder(path);
        // What was there may have been a folder.
        tree.remove(&place);
        match what {
            Plant::Text(text) => tree.text(place, text),
            Plant::Link(target) => tree.link(place, target),
            Plant::Denied => tree.denied(place),
            Plant::Absent => {}
        }
    }
}
