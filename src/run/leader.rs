//! Rank 0 from the first case to the last: it measures, judges and records.

use super::{
    Failure, Run,
    lookout::Notes,
    proof::Proof,
    remedy,
    steps::{Rest, Step},
    worker::{CaseResult, StepResult, Worker},
};
use crate::{
    interrupt,
    machine::survey,
    measure::{Latency, Outcome},
    plan::{Case, Rank},
    record::{self, Recorder, Row},
    show::progress::{Left, Progress},
    stderr::say,
    transport::nccl_env,
    world,
};

/// What rank 0 needs to measure and record.
pub(super) struct Leader<'a> {
    run: &'a Run<'a>,
    recorder: &'a mut Recorder,
    worker: Worker<'a>,
    progress: Progress,
    /// Which way NCCL's data went.
    proof: Proof,
    /// What has been reported of GPUs.
    notes: Notes,
    /// How many rows the run has in the end.
    rows: usize,
    /// Number of the next row. In a resumed run the first ones may be recorded already.
    next: usize,
}

impl<'a> Leader<'a> {
    /// For a run of which `rest` is left to measure.
    pub(super) fn new(
        run: &'a Run<'_>,
        worker: Worker<'a>,
        recorder: &'a mut Recorder,
        rest: &Rest<'_>,
    ) -> Self {
        let options = run.options;
        // A run that is resumed with other GPUs keeps the topology that it began with.
        if !options.resume_changed
            && let Err(err) = record::keep_topology(recorder.folder(), &survey::told().0)
        {
            say(&format!("warning: {err}"));
        }
        let rows = rest.row - 1 + rest.steps.iter().map(Step::rows).sum::<usize>();
        let weights = rest.steps.iter().filter_map(Step::weight);
        let left = Left::new(weights, options.time_limit);
        let progress = Progress::new(rows, recorder.rows().len(), left, options.verbosity());
        progress.begin_run(recorder.folder());
        let (proof, notes) = (Proof::default(), Notes::default());
        Self { run, recorder, worker, progress, proof, notes, rows, next: rest.row }
    }

    /// Measures and records each step. Ends early if a row cannot be recorded or a rank is lost.
    pub(super) fn measure(&mut self, steps: &[Step]) -> Result<(), Failure> {
        for step in steps {
            self.may_go_on()?;
            if let Step::Absent { transport, reason } = step {
                self.record(Row::absent(self.next, *transport, reason), &[])?;
                continue;
            }
            if let Some((case, weight)) = step.cases().next().zip(step.weight()) {
                self.progress.begin(case, weight);
            }
            let measured = self.worker.measure(step);
            self.progress.end();
            let StepResult { cases, lost } = measured.unwrap_or_else(|err| StepResult {
                cases: Vec::new(),
                lost: Some(err.to_string()),
            });
            let before = self.recorder.rows().len();
            for (case, result) in step.of_hosts().into_iter().zip(cases) {
                if let Some(case) = case {
                    self.take(case, &result)?;
                }
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

    /// Makes and records the row of a case: its numbers, its path, its verdict.
    fn take(&mut self, case: &Case, result: &CaseResult) -> Result<(), Failure> {
        let (row, latencies) = match &result.outcome {
            Some(Ok(outcome)) => {
                let row = Row::new(self.next, case, outcome);
                (self.proven(row, case, outcome)?, outcome.latencies())
            }
            Some(Err(reason)) => {
                // After a signal the case is not to blame: the run ends without this row.
                self.may_go_on()?;
                (Row::failed(self.next, case, reason), Vec::new())
            }
            None => return Ok(()),
        };
        let hosts = &self.run.hosts;
        let row = self.notes.row(row, case, result).on(hosts);
        let row = row.with_nccl_env(&self.run.options.nccl.nccl_env);
        self.record(self.run.judge.judged(row, case, hosts), &latencies)
    }

    /// Ends the run if a signal asks for it.
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

    /// Ends the run in order. After a failure the other ranks are out of reach, and only what this
    /// rank knows is recorded.
    pub(super) fn finish(mut self, measured: Result<(), Failure>) -> Result<(), Failure> {
        let measured = measured.and_then(|()| self.take_leave());
        if measured.is_err() {
            // The first failure is the one to report.
            let _ = self.break_off();
        }
        self.progress.finish();
        measured
    }

    /// Records the end of each rank's NCCL log and the health of its GPUs.
    fn take_leave(&mut self) -> Result<(), Failure> {
        let middle = |err: world::Error| Failure::Middle(err.to_string());
        let gathered = self.worker.take_leave().map_err(middle)?;
        let mut health = Vec::new();
        for (rank, text, of_host) in gathered.into_iter().flatten() {
            self.record_log(rank, text)?;
            health.extend(of_host);
        }
        self.recorder.conclude(health).map_err(|err| Failure::Middle(err.to_string()))?;
        self.worker.ranks.world.barrier().map_err(middle)
    }

    /// Records the end of this rank's NCCL log and the health of this host's GPUs.
    fn break_off(&mut self) -> Result<(), Failure> {
        self.record_log(Rank(0), nccl_env::take_log())?;
        let health = self.worker.bench.lookout.health().into_iter().collect();
        self.recorder.conclude(health).map_err(|err| Failure::Middle(err.to_string()))
    }

    fn record_log(&self, rank: Rank, text: Option<String>) -> Result<(), Failure> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(()) };
        let written = self.recorder.append_nccl_log(rank, &text);
        written.map_err(|err| Failure::Middle(err.to_string()))
    }

    /// Adds to the row of a collective the path of its data, according to NCCL's log.
    fn proven(&mut self, row: Row, case: &Case, outcome: &Outcome) -> Result<Row, Failure> {
        let Outcome::Measured(measured) = outcome else { return Ok(row) };
        if case.collective().is_none() {
            return Ok(row);
        }
        for (rank, text) in measured.log.iter().flatten() {
            self.record_log(*rank, Some(text.clone()))?;
        }
        let (path, verdict) = self.proof.path(case, measured.log.as_deref());
        Ok(row.by_path(path, verdict))
    }

    fn record(&mut self, row: Row, latencies: &[(Option<Rank>, Latency)]) -> Result<(), Failure> {
        self.next += 1;
        // A resumed run may have some rows of a step that hosts measured at the same time.
        if row.case <= self.recorder.rows().len() {
            return Ok(());
        }
        let row = Row { simulated: self.run.options.simulate.is_some(), ..row };
        let written = self.recorder.append(row.clone(), latencies);
        written.map_err(|err| self.end(err.to_string()))?;
        self.progress.row(&row);
        Ok(())
    }
}
