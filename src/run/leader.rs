//! Rank 0 between the first case and the last: what becomes of each is judged and recorded.

use std::path::Path;

use super::{
    Failure,
    items::Item,
    judge::Judge,
    lookout::{Lookout, Notes},
    proof::Proof,
    ranks::Ranks,
    steps::{Job, Transports},
};
use crate::{
    interrupt,
    measure::{Latency, Outcome},
    plan::{Case, Rank, topology::Host},
    progress::Progress,
    record::{Recorder, Row},
    transport::environment,
    world,
};

/// What rank 0 works with beside the other ranks.
pub(super) struct Leader<'a> {
    pub(super) items: Vec<Item>,
    pub(super) transports: Transports,
    pub(super) recorder: Recorder,
    pub(super) progress: Progress,
    pub(super) hosts: Vec<Host>,
    /// Which of them this rank is on.
    pub(super) own: usize,
    /// The variables of NCCL that the user gave.
    pub(super) nccl_env: Vec<(String, String)>,
    /// Which way NCCL's data went.
    pub(super) proof: Proof,
    /// What is expected of rows.
    pub(super) judge: &'a Judge,
    /// Who reads the counters of this host.
    pub(super) lookout: Lookout,
    /// What was said of GPUs.
    pub(super) notes: Notes,
    /// How many rows there are to be.
    pub(super) rows: usize,
    /// Number of the next row; of a run that goes on, those that come first may be there already.
    pub(super) next: usize,
}

/// How to go on with a run that has ended early.
pub(super) fn remedy(folder: &Path) -> String {
    format!("the same command with --resume {} goes on", folder.display())
}

impl Leader<'_> {
    /// Measures and records all that is left, and gives the GPUs back; the files, and how it ended.
    pub(super) fn lead(
        mut self,
        job: &Job,
        ranks: &mut Ranks,
        is_simulated: bool,
    ) -> (Recorder, Result<(), Failure>) {
        let measured = self.measure_all(job, ranks, is_simulated);
        let measured = measured.and_then(|()| self.take_leave(ranks));
        if measured.is_err() {
            // Why it failed is told first.
            let _ = self.break_off();
        }
        self.progress.finish();
        (self.recorder, measured)
    }

    /// Measures and records every item, until one cannot be recorded or a rank is out of reach.
    fn measure_all(
        &mut self,
        job: &Job,
        ranks: &mut Ranks,
        is_simulated: bool,
    ) -> Result<(), Failure> {
        let mut index = job.first;
        for item in std::mem::take(&mut self.items) {
            self.may_go_on()?;
            let Some(step) = item.step(self.own) else {
                if let Item::Absent { kind, reason } = &item {
                    let row = Row::absent(self.next, *kind, reason);
                    self.record(Row { simulated: is_simulated, ..row }, &[])?;
                }
                continue;
            };
            if let Some((case, weight)) = item.cases().next().zip(item.weight()) {
                self.progress.begin(case, weight);
            }
            let topology = self.hosts[self.own].topology.clone();
            let with = (&mut self.transports, &topology, &mut self.lookout);
            let measured = step.measure(ranks, job, index, with);
            index += 1;
            self.progress.end();
            let (results, lost) = match measured {
                Ok(measured) => measured,
                Err(err) => (Vec::new(), Some(err.to_string())),
            };
            let before = self.recorder.rows().len();
            for (case, result) in item.all_cases().zip(results) {
                let Some((case, found)) = case.zip(result) else { continue };
                if found.outcome.is_err() {
                    // What ends a case then is no fault of it.
                    self.may_go_on()?;
                }
                let (row, latencies) = match &found.outcome {
                    Ok(outcome) => {
                        let row = Row::new(self.next, case, outcome);
                        (self.proven(row, case, outcome)?, outcome.latencies())
                    }
                    Err(reason) => (Row::failed(self.next, case, reason), Vec::new()),
                };
                let row = self.notes.row(row, case, &found);
                let row = row.on(&self.hosts).with_nccl_env(&self.nccl_env);
                let row = self.judge.judged(row, case, &self.hosts);
                let row = Row { simulated: is_simulated, ..row };
                self.record(row, &latencies)?;
            }
            if let Some(reason) = lost {
                self.may_go_on()?;
                let place = match self.recorder.rows().len() {
                    rows if rows > before => format!(", in row {rows}"),
                    _ => String::new(),
                };
                return Err(self.end(reason + &place));
            }
        }
        Ok(())
    }

    /// Ends the run if a signal has asked for it.
    fn may_go_on(&self) -> Result<(), Failure> {
        match interrupt::asked() {
            Some(signal) => Err(self.end(format!("interrupted by {}", signal.name()))),
            None => Ok(()),
        }
    }

    /// The end of the run before its last row.
    fn end(&self, reason: String) -> Failure {
        let remedy = remedy(self.recorder.folder());
        Failure::Middle(match self.rows - self.recorder.rows().len() {
            0 => reason,
            1 => format!("{reason}; 1 row was not measured: {remedy}"),
            left => format!("{reason}; {left} rows were not measured: {remedy}"),
        })
    }

    /// Takes leave of the other ranks, with what their logs have that no row has brought, and with
    /// how their GPUs have done.
    fn take_leave(&mut self, ranks: &mut Ranks) -> Result<(), Failure> {
        let middle = |err: world::Error| Failure::Middle(err.to_string());
        ranks.world.next_round();
        let own = (Rank(0), environment::take_log(), self.lookout.health());
        let mut health = Vec::new();
        for (rank, text, of_host) in ranks.world.gather(own).map_err(middle)?.into_iter().flatten()
        {
            self.record_log(rank, text)?;
            health.extend(of_host);
        }
        self.recorder.conclude(health).map_err(|err| Failure::Middle(err.to_string()))?;
        ranks.world.barrier().map_err(middle)
    }

    /// Keeps what this rank alone knows of a run that has ended in the middle: what NCCL has said
    /// last, and how the GPUs of this host have done.
    fn break_off(&mut self) -> Result<(), Failure> {
        self.record_log(Rank(0), environment::take_log())?;
        let health = self.lookout.health().into_iter().collect();
        self.recorder.conclude(health).map_err(|err| Failure::Middle(err.to_string()))
    }

    fn record_log(&self, rank: Rank, text: Option<String>) -> Result<(), Failure> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(()) };
        let written = self.recorder.append_nccl_log(rank, &text);
        written.map_err(|err| Failure::Middle(err.to_string()))
    }

    /// The row of a collective with the way that its data went, by NCCL's log.
    fn proven(&mut self, row: Row, case: &Case, outcome: &Outcome) -> Result<Row, Failure> {
        let Outcome::Measured(measured) = outcome else { return Ok(row) };
        if case.collective().is_none() {
            return Ok(row);
        }
        for (rank, text) in measured.log.iter().flatten() {
            self.record_log(*rank, Some(text.clone()))?;
        }
        Ok(row.by_path(self.proof.path(case, measured.log.as_deref())))
    }

    fn record(&mut self, row: Row, latencies: &[(Option<Rank>, Latency)]) -> Result<(), Failure> {
        self.next += 1;
        // Of a case that hosts have measured at the same time some rows may be there.
        if row.case <= self.recorder.rows().len() {
            return Ok(());
        }
        let written = self.recorder.append(row.clone(), latencies);
        written.map_err(|err| self.end(err.to_string()))?;
        self.progress.row(&row);
        Ok(())
    }
}
