//! Ranks that end, stop or hang in each phase of a run, and a driver that does.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Output, thread};

use tempfile::TempDir;

use crate::common::{
    Rows, Running, SOON, assert_nothing_stays, eventually, group_members, shared_memory_names,
    simulation::{FREE_EVENTS, four_gpus},
    start, text, wait,
};

/// Three rows between two ranks, over memory that one has of the other.
const LINE: &str = "p2p --gpus 0,1 --ranks 2 --engine ce --operation copy --handle ipc --issuer read \
                    --pattern one-way --sizes 64K,128K --samples 20 --time-limit 1ms --deadline 5s";

/// What a run on a simulated machine has left.
struct Ended {
    folder: TempDir,
    code: Option<i32>,
    said: String,
    shown: String,
}

impl Ended {
    /// A run with a fault, after which nobody is there any more.
    fn of(fault: &str) -> Self {
        let names = shared_memory_names();
        let (child, folder) = begin(fault);
        let group = child.id();
        let result = wait(child);
        assert_nothing_stays(group, &names);
        Self::from(result, folder)
    }

    fn from(result: Output, folder: TempDir) -> Self {
        let (said, shown) = (text(&result.stderr), text(&result.stdout));
        Self { folder, code: result.status.code(), said, shown }
    }

    fn rows(&self) -> Option<Rows> {
        let output = self.folder.path().join("run");
        output.join("run.csv").exists().then(|| Rows::read(&output))
    }

    /// What failed: the sentence of the row, or without a row that of the run.
    fn reason(&self) -> String {
        let failed = self.rows().and_then(|rows| {
            let failed = (0..rows.len()).find(|row| rows.cell(*row, "status") == "failed")?;
            Some(rows.cell(failed, "reason").to_owned())
        });
        failed.unwrap_or_else(|| self.said.clone())
    }

    /// Fails unless every row is measured, or names `rank`; and unless what is left over of GPUs
    /// was given back by those that came to their end.
    fn assert_named(&self, rank: u32, what: &str) {
        let what = format!("{what}: {:?} {}{}", self.code, self.shown, self.said);
        let name = format!("rank {rank}");
        assert!(self.reason().contains(&name), "{what}");
        let rows = self.rows();
        for (rows, row) in rows.iter().flat_map(|rows| (0..rows.len()).map(move |row| (rows, row)))
        {
            match rows.cell(row, "status") {
                "ok" => assert!(rows.number(row, "bandwidth_gb_s") > 0.0, "{what}"),
                "failed" => {
                    assert!(rows.cell(row, "reason").contains(&name), "{what}");
                    assert_eq!(rows.cell(row, "bandwidth_gb_s"), "", "{what}");
                }
                other => panic!("{other}: {what}"),
            }
        }
        let report = self.folder.path().join("report.jsonl");
        for line in fs::read_to_string(report).unwrap_or_default().lines() {
            let process: serde_json::Value = serde_json::from_str(line).unwrap();
            let live = process["live"].as_object().unwrap();
            assert!(live.values().all(|count| count.as_u64() == Some(0)), "{what}: {live:?}");
        }
    }

    /// The phase that the sentence names.
    fn phase(&self) -> String {
        let reason = self.reason();
        let phase = reason.rsplit_once('(').and_then(|(_, phase)| phase.split(')').next());
        phase.unwrap_or_default().to_owned()
    }
}

/// Starts a run on a machine with a fault.
fn begin(fault: &str) -> (Running, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let report: PathBuf = folder.path().join("report.jsonl");
    let machine = four_gpus("", &format!("\n[[fault.call]]\n{fault}\n{FREE_EVENTS}"));
    let file = folder.path().join("machine.toml");
    fs::write(&file, machine.replace("report.jsonl", report.to_str().unwrap())).unwrap();
    let output = folder.path().join("run");
    let child = start(&format!(
        "{LINE} --simulate {} --no-report --output {}",
        file.display(),
        output.display()
    ));
    (child, folder)
}

/// Where rank 1 is in its work when it makes a call for the so-and-so-many-th time.
const MOMENTS: [(&str, u64); 16] = [
    ("cuInit", 0),
    ("cuDevicePrimaryCtxRetain", 0),
    ("cuMemAlloc", 0),
    ("cuIpcOpenMemHandle", 0),
    ("cuMemcpyAsync", 0),
    ("cuMemcpyAsync", 7),
    ("cuMemcpyAsync", 60),
    ("cuMemcpyAsync", 200),
    ("cuMemcpyAsync", 700),
    ("cuMemcpyAsync", 1200),
    ("cuMemcpyAsync", 2400),
    ("cuIpcCloseMemHandle", 0),
    ("cuMemFree", 0),
    ("cuIpcOpenMemHandle", 1),
    ("cuEventDestroy", 3),
    ("cuDevicePrimaryCtxRelease", 0),
];

/// What must be met among them.
const PHASES: [&str; 4] =
    ["while it was prepared", "in the warm-up", "in the bandwidth pass", "in the latency pass"];

/// What becomes of the process of `rank` in a call.
fn fault(what: &str, rank: u32, (call, after): (&str, u64)) -> String {
    format!("name = \"{call}\"\nafter = {after}\nwhat = \"{what}\"\nprocess = {rank}")
}

fn in_each_phase(what: &str) {
    let phase = |moment: (&str, u64)| {
        let ended = Ended::of(&fault(what, 1, moment));
        let moment = format!("{moment:?}");
        if ended.code == Some(0) {
            // It was not called so often, or behind the last word that rank 0 waits for.
            let rows = ended.rows().unwrap();
            assert!((0..rows.len()).all(|row| rows.cell(row, "status") == "ok"), "{moment}");
            return None;
        }
        ended.assert_named(1, &moment);
        Some(ended.phase())
    };
    let phases: BTreeSet<String> = at_each_moment(phase).into_iter().flatten().collect();
    for phase in PHASES {
        assert!(phases.contains(phase), "{phase} is not among {phases:?}");
    }
}

/// Does it at each of [`MOMENTS`], at some of them at the same time.
fn at_each_moment<T: Send>(work: impl Fn((&'static str, u64)) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let part = |part: usize| {
            let work = &work;
            let moments = MOMENTS.into_iter().skip(part).step_by(4);
            scope.spawn(move || moments.map(work).collect::<Vec<T>>())
        };
        let parts: Vec<_> = (0..4).map(part).collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect()
    })
}

#[test]
fn a_rank_that_is_killed_in_any_phase_is_named_with_it() {
    in_each_phase("killed");
}

#[test]
fn a_rank_that_is_stopped_in_any_phase_is_named_with_it() {
    in_each_phase("stopped");
}

#[test]
fn a_rank_whose_driver_hangs_in_any_phase_is_named_with_it() {
    in_each_phase("hung");
}

#[test]
fn a_driver_that_hangs_ends_the_run_and_is_named() {
    let ended = Ended::of(&fault("hung", 0, ("cuMemFree", 2)));
    assert_eq!(ended.code, Some(1), "{}", ended.said);
    let told = "error: cuMemFree_v2 has not come back within 30 s: the driver hangs; ";
    assert!(ended.said.contains(told), "{}", ended.said);
    let rows = ended.rows().unwrap();
    assert_eq!(rows.cell(0, "status"), "ok");
}

#[test]
fn rank_0_killed_in_any_phase_takes_the_others_with_it() {
    let is_killed = at_each_moment(|moment| {
        let ended = Ended::of(&fault("killed", 0, moment));
        if let Some(rows) = ended.rows() {
            let is_ok = |row| rows.cell(row, "status") == "ok";
            assert!((0..rows.len()).all(is_ok), "{moment:?}: {}", ended.said);
        }
        assert!(ended.code.is_none_or(|code| code == 0), "{moment:?}: {}", ended.said);
        ended.code.is_none()
    });
    assert_most(&is_killed);
}

#[test]
fn rank_0_stopped_in_any_phase_leaves_no_other_waiting() {
    let is_stopped = at_each_moment(|moment| {
        let names = shared_memory_names();
        let (child, _folder) = begin(&fault("stopped", 0, moment));
        let group = child.id();
        let state = || fs::read_to_string(format!("/proc/{group}/stat")).unwrap_or_default();
        let (mut is_stopped, mut has_ended) = (false, false);
        let stands = || {
            (is_stopped, has_ended) = (state().contains(") T "), state().contains(") Z "));
            is_stopped || has_ended
        };
        assert!(eventually(SOON, stands), "{moment:?}: it does not come so far");
        // The other one leaves, and rank 0, let go on, ends too.
        let is_alone = || group_members(group).iter().all(|process| *process == group);
        assert!(eventually(SOON, is_alone), "{moment:?}: rank 1 stays");
        crate::common::signal("CONT", group);
        let result = wait(child);
        assert_nothing_stays(group, &names);
        assert!(result.status.code().is_some(), "{moment:?}: {}", text(&result.stderr));
        is_stopped
    });
    assert_most(&is_stopped);
}

/// Some calls are made less often than [`MOMENTS`] has it, where samples are few.
fn assert_most(hit: &[bool]) {
    let count = hit.iter().filter(|is_hit| **is_hit).count();
    assert!(count * 4 >= hit.len() * 3, "the fault came at {count} of {} moments", hit.len());
}
