//! The folders of runs.

use std::{fs, thread, time::Duration};

use g2g::{
    analysis::compare::{self, Allowance, By, Runs, Source},
    record::{Error, Held, Run, Status},
    show::{
        self,
        report::{self, Part},
    },
};

use super::{Folder, assert_sentence, files, html};

/// The files of a run in the order in which an input has them.
pub(crate) const FILES: [&str; 4] = ["run.csv", "run.json", "latency.hlog", "topology.json"];

/// A folder in memory for this process.
static FOLDER: Folder = Folder::new("results");

/// Removes what the inputs of this process have left.
pub(crate) fn clean() {
    FOLDER.remove();
}

/// Read as `g2g report` and `g2g compare` read it, and gone on with as `--resume` does: no panic,
/// one sentence of what is wrong, a page without foreign tags; and what cannot be gone on with
/// stays as it was.
pub(crate) fn take(input: &[u8]) -> bool {
    let contents: [&[u8]; 4] = files(input);
    let write = || {
        for (name, bytes) in FILES.iter().zip(contents) {
            fs::write(FOLDER.path().join(name), bytes).expect("memory takes every write");
        }
    };
    write();
    let shown = Run::read(FOLDER.path()).and_then(|run| Part::of_run(&run, false));
    if let Some(part) = told(shown) {
        html::assert_is_safe(&report::html(vec![part], None));
    }
    let source = || told(Run::read(FOLDER.path()).and_then(Source::of_run));
    if let (Some(a), Some(b)) = (source(), source()) {
        let sources = [a, b];
        let allowance = Allowance { across: Vec::new(), margin: 0.05 };
        let run = |name, at| Runs { name, sources: at..at + 1 };
        let sides = [compare::sides(&sources, run("a", 0), run("b", 1), &allowance)];
        compared(&sources, &sides);
        let part = Part::of_comparisons(&["a", "b"], &sources, &sides);
        html::assert_is_safe(&report::html(Vec::new(), Some(part)));
        for by in ["issuer", "engine", "host", "nccl-env:NCCL_ALGO"] {
            let by: By = by.parse().expect("it is one of them");
            compared(&sources[..1], &compare::parts(&sources[..1], &by, allowance.margin));
        }
    }
    gone_on_with(contents)
}

fn compared(sources: &[Source], comparisons: &[compare::Comparison]) {
    let page = show::compare::page(sources, comparisons, true);
    for text in [page.styled(), page.markdown(), show::compare::csv(sources, comparisons)] {
        assert!(text.is_empty() || text.ends_with('\n'));
    }
    let json = show::compare::json(sources, comparisons);
    serde_json::from_str::<serde_json::Value>(&json).expect("it is JSON");
}

fn gone_on_with(contents: [&[u8]; 4]) -> bool {
    let unchanged = || {
        FILES
            .iter()
            .zip(contents)
            .all(|(name, bytes)| fs::read(FOLDER.path().join(name)).is_ok_and(|now| now == bytes))
    };
    let Some(held) = told(hold()) else {
        assert!(unchanged(), "it was refused and changed");
        return false;
    };
    let Some(past) = held.past() else { return false };
    let (provenance, rows) = (past.provenance.clone(), past.rows.clone());
    let Some(mut recorder) = told(held.open(&provenance, None)) else {
        assert!(unchanged(), "it was refused and changed");
        return false;
    };
    assert_eq!(recorder.rows().len(), rows.len());
    let Some(last) = rows.last() else { return false };
    let mut next = last.clone();
    next.case += 1;
    next.status = Status::Failed;
    recorder.append(next, &[]).expect("memory takes it");
    drop(recorder);
    // What is finished stays, and one more is there.
    let held = hold().expect("what was gone on with can be gone on with");
    assert_eq!(held.past().map(|past| past.rows.len()), Some(rows.len() + 1));
    true
}

/// Holds the run, once a process that this one has just started has let go of it: until it runs its
/// own program, it has open what this one had open.
fn hold() -> Result<Held, Error> {
    for _ in 0..1000 {
        match Held::of(FOLDER.path()) {
            Err(err) if err.to_string().contains("another g2g works in it") => {
                thread::sleep(Duration::from_millis(10));
            }
            held => return held,
        }
    }
    Held::of(FOLDER.path())
}

fn told<T>(result: Result<T, Error>) -> Option<T> {
    result.map_err(|err| assert_sentence(&err.to_string())).ok()
}
