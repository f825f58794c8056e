//! The plan of a sweep, and the sweep.json that `g2g report` reads.

use std::fs;

use g2g::{
    plan::sweep::Plan,
    record::sweep::Past,
    show::report::{self, Part},
};

use super::{Folder, assert_sentence, files, html};

/// A folder in memory for this process.
static FOLDER: Folder = Folder::new("sweep");

/// Removes what the inputs of this process have left.
pub(crate) fn clean() {
    FOLDER.remove();
}

/// More runs than a plan may ask for.
const RUNS_MAX: usize = 10_000;

/// The plan is read and its runs counted, the results shown: no panic, one sentence of what is
/// wrong, a page without foreign tags.
pub(crate) fn take(input: &[u8]) -> bool {
    let [plan, json]: [&[u8]; 2] = files(input);
    let mut is_taken = false;
    if let Ok(text) = std::str::from_utf8(plan) {
        match Plan::read(text) {
            Ok(plan) => {
                is_taken = true;
                let runs = plan.runs();
                assert!((1..=RUNS_MAX).contains(&runs.len()));
                for run in runs.iter().take(100) {
                    plan.describe(run.combination);
                }
            }
            Err(bad) => assert_sentence(&bad.to_string()),
        }
    }
    if json.is_empty() {
        return is_taken;
    }
    let folder = FOLDER.path();
    fs::write(folder.join("sweep.json"), json).expect("memory takes every write");
    match Past::read(folder) {
        Ok(past) => {
            html::assert_is_safe(&report::html(vec![Part::of_sweep(&past)], None));
            is_taken
        }
        Err(err) => {
            assert_sentence(&err.to_string());
            false
        }
    }
}
