//! What the counters of a case and the health of its GPUs add to its row.

use std::collections::{BTreeSet, HashMap};

use super::worker::CaseResult;
use crate::{
    judge::{
        counters::{self, Moved, Seen},
        health,
    },
    machine::{counters::Reading, health::Errors},
    measure::Outcome,
    plan::{Case, Gpu, Rank},
    record::Row,
    stderr::say,
};

/// What is known about GPUs, each by the first rank of its host.
#[derive(Default)]
pub(super) struct Notes {
    /// What has been reported, so that nothing is reported twice.
    said: BTreeSet<(Option<Rank>, Gpu, &'static str)>,
    /// The errors after the last case of each GPU.
    errors: HashMap<(Option<Rank>, Gpu), Errors>,
}

impl Notes {
    /// Adds to the row what the counters say about its path and its GPUs.
    pub(super) fn row(&mut self, row: Row, case: &Case, result: &CaseResult) -> Row {
        let CaseResult { outcome, seen } = result;
        let row = match outcome {
            Some(Ok(Outcome::Measured(measured))) => {
                let bytes = measured.network.as_ref().map(|network| network.moved);
                let moved = Moved { operations: measured.operations, bytes };
                match counters::path(case, moved, seen) {
                    Some(path) => row.counted(path),
                    None => row.with_nvlink_bytes(counters::nvlink_bytes_per_byte(
                        case,
                        measured.operations,
                        seen,
                    )),
                }
            }
            _ => row,
        };
        let mut doubts = Vec::new();
        for host in seen {
            let of_host = case.ends().filter(|end| host.ranks.contains(&end.rank));
            let gpus: BTreeSet<Gpu> = of_host.filter_map(|end| end.gpu()).collect();
            let before = self.since_last(host, &gpus);
            let mut new = health::doubts(&before, &host.after, host.between, &host.xids);
            // Errors may also be from the time since the previous case.
            new.retain(|doubt| gpus.contains(&doubt.gpu) || doubt.flag == "xid");
            for doubt in &new {
                self.say(row.case, seen.len(), host, doubt);
            }
            doubts.extend(new);
        }
        row.with_flags(&health::flags(&doubts))
    }

    /// What was read before a case, with the errors that each of `gpus` had after its last one:
    /// what happens while a case is prepared belongs to it.
    fn since_last(&mut self, host: &Seen, gpus: &BTreeSet<Gpu>) -> Reading {
        let first = host.ranks.first().copied();
        let mut before = host.before.clone();
        for gpu in gpus {
            if let Some(Ok(before)) = before.gpus.get_mut(gpu)
                && let Some(known) = self.errors.get(&(first, *gpu))
            {
                let now = before.health.errors;
                before.health.errors = Errors {
                    power_throttled_ns: now.power_throttled_ns,
                    thermal_throttled_ns: now.thermal_throttled_ns,
                    board_throttled_ns: now.board_throttled_ns,
                    ..*known
                };
            }
            if let Some(Ok(after)) = host.after.gpus.get(gpu) {
                self.errors.insert((first, *gpu), after.health.errors);
            }
        }
        before
    }

    fn say(&mut self, case: usize, hosts: usize, host: &Seen, doubt: &health::Doubt) {
        let first = host.ranks.first().copied();
        if !self.said.insert((first, doubt.gpu, doubt.flag)) {
            return;
        }
        let gpu = doubt.gpu.0;
        let place = match (hosts, first) {
            (2.., Some(rank)) => format!(" on the host of rank {}", rank.0),
            _ => String::new(),
        };
        say(&format!("note: GPU {gpu}{place}, case {case}: {} ({})", doubt.what, doubt.flag));
    }
}
