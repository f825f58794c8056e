//! What the counters of a case and the health of its GPUs add to its row.

use std::collections::BTreeSet;

use super::worker::CaseResult;
use crate::{
    judge::{
        counters::{self, Moved, Seen},
        health,
    },
    measure::Outcome,
    plan::{Case, Gpu, Rank},
    record::Row,
    stderr::say,
};

/// What has been reported about GPUs, so that nothing is reported twice.
#[derive(Default)]
pub(super) struct Notes(BTreeSet<(Option<Rank>, Gpu, &'static str)>);

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
            let mut new = health::doubts(&host.before, &host.after, host.between, &host.xids);
            // An Xid may also be from the time since the previous case.
            new.retain(|doubt| gpus.contains(&doubt.gpu) || doubt.flag == "xid");
            for doubt in &new {
                self.say(row.case, seen.len(), host, doubt);
            }
            doubts.extend(new);
        }
        row.with_flags(&health::flags(&doubts))
    }

    fn say(&mut self, case: usize, hosts: usize, host: &Seen, doubt: &health::Doubt) {
        let first = host.ranks.first().copied();
        if !self.0.insert((first, doubt.gpu, doubt.flag)) {
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
