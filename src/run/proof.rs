//! The path of NCCL's data, according to its log.

use std::{collections::BTreeMap, env};

use crate::{
    nccl_log::{Asked, Log, PathVerdict, Reader, Summary, Verdict, WarningKind, Wishes},
    plan::{Case, Rank},
    record::Row,
    transport::nccl_env::LOG_MARK,
};

/// The flag of a row in whose communicator NCCL's own diagnostics have found a fault.
const DIAGNOSED: &str = "nccl_diagnosis";

/// The NCCL logs of all ranks so far.
#[derive(Debug, Default)]
pub(super) struct Proof {
    logs: BTreeMap<Rank, String>,
}

impl Proof {
    /// The row of `case` with the path of its data, and what NCCL's diagnostics have found. `new` has
    /// the ranks' new lines, `None` if their logs are not kept.
    pub(super) fn row(&mut self, row: Row, case: &Case, new: Option<&[(Rank, String)]>) -> Row {
        let Some(new) = new else {
            let reason = "NCCL_DEBUG_FILE is set: NCCL's log is there and not here; `g2g \
                          explain` reads it";
            let reason = reason.to_owned();
            let unknown = PathVerdict { verdict: Verdict::Unknown, reason, at: None };
            return row.by_path(Summary::default(), unknown);
        };
        for (rank, text) in new {
            self.logs.entry(*rank).or_default().push_str(text);
        }
        let mut reader = Reader::default();
        let mut begins = Vec::new();
        for (rank, text) in &self.logs {
            // Reading from memory cannot fail.
            let _ = reader.read(&format!("rank {}", rank.0), text.as_bytes());
            let mark =
                text.lines().collect::<Vec<&str>>().iter().rposition(|line| *line == LOG_MARK);
            begins.push(mark.map_or(0, |line| line as u64 + 1));
        }
        let mut log = reader.finish();
        log.keep_behind(&begins);
        let asked = asked(case);
        let variables: Vec<(String, String)> = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let set = variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let verdict = log.path_verdict(asked.as_ref(), &Wishes::of(set));
        diagnosed(row.by_path(log.summary(asked.as_ref()), verdict), &log)
    }
}

/// The row with what NCCL's diagnostics have found.
fn diagnosed(row: Row, log: &Log) -> Row {
    let found = log.warnings.iter().filter(|warning| warning.kind == WarningKind::Diagnosis);
    let found = found.map(|warning| warning.text.split_once("[INFO]").map_or("", |(_, said)| said));
    let found: Vec<&str> = found.map(str::trim).collect();
    let Some(first) = found.first() else { return row };
    let more = match found.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more in the log)"),
    };
    let before = if row.reason.is_empty() { "" } else { "; " };
    let reason = format!("{}{before}NCCL's diagnostics: {first}{more}", row.reason);
    Row { reason, ..row.with_flags(&[DIAGNOSED]) }
}

/// The operation of `case` as NCCL's log may call it.
fn asked(case: &Case) -> Option<Asked> {
    let (collective, nccl, layout) = case.collective()?;
    let count = nccl.data_type.size().times(layout.count);
    let size = layout.size(nccl.data_type);
    Some(Asked { function: collective.shape().function, count, size })
}
