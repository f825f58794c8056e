//! Rank 0 from the plan to the last row: it plans, measures with the others, judges and records.

use std::{collections::BTreeSet, mem, time::Duration};

use super::{
    END, Ending, Failure, Format, Options,
    burn_in::BurnIn,
    check,
    estimate::{Estimate, estimate},
    free_folder,
    judge::{Judge, catalogue},
    notes::Notes,
    proof::Proof,
    ranks::{Here, Ranks, Task, Told},
    remedy,
    results::is_well,
    resume,
    sites::Sites,
    step::{Job, Rest, Step},
    steps,
    worker::{CaseResult, Leave, Lost, StepResult, Transports, Worker},
};
use crate::{
    analysis::fitness::{Baseline, Problem, Stage},
    interrupt,
    judge::doctor::Member,
    machine::survey,
    measure::{Latency, Outcome},
    plan::{Case, Rank, Request, topology::Host},
    record::{self, Recorder, Row, provenance::Provenance},
    show::{
        self,
        progress::{Left, Progress, readable_wait},
    },
    stderr::say,
    transport::{Moment, machine_now},
    units::{Bytes, count},
};

/// Plans, measures with the other ranks, records and prints.
pub(super) fn lead(
    options: &Options,
    request: &Request,
    transports: Transports,
    Sites { all: mut sites, lost }: Sites,
    ranks: &mut Ranks,
) -> Result<Ending, Failure> {
    let is_launched = ranks.launcher.is_some();
    if let Some(file) = &options.check.placement {
        check::place(file, &mut sites)?;
    }
    let steps = steps::plan(request, &mut sites, is_launched).map_err(Failure::Start)?;
    let simulation = sites[0].simulation.take();
    let examined: Vec<Member> =
        sites.iter_mut().flat_map(|site| mem::take(&mut site.examined)).collect();
    let (hosts, judged) = sites.into_iter().map(|site| (site.host, site.judged)).unzip();
    let judge = Judge { catalogue: catalogue(options.catalogue.as_deref())?, hosts: judged };
    let mut problems = check::problems(&examined);
    for (host, why) in &lost {
        say(&check::without(host, why));
        problems.extend(check::lost_rank(why, Stage::Doctor));
    }
    let lost = lost.into_iter().map(|(host, _)| host).collect();
    let baseline = Baseline::default();
    let mut run = Run {
        options,
        request,
        hosts,
        lost,
        simulation,
        judge,
        problems,
        left_out: ranks.left_out.clone(),
        baseline,
        steps,
        is_launched,
    };
    if request.is_check {
        run.keep_budget();
    }
    if options.dry_run {
        let listing = show::Page::of(&steps::listing(&run.steps));
        show::print_page(&listing).map_err(Failure::start)?;
        run.say_estimate(&run.estimate(&run.steps), &run.steps);
        return Ok(Ending::Well);
    }
    let provenance = run.provenance(ranks);
    if let Some(folder) = &options.check.baseline {
        run.baseline = check::baseline(folder, &provenance)?;
    }
    run.begin_list()?;
    let mut recorder = run.open(&provenance)?;
    let steps = run.all_steps(recorder.rows());
    let rest = Rest::of(&steps, recorder.rows().len());
    let (measured, took) = if rest.steps.is_empty() && options.check.burn_in.is_none() {
        ranks.dismiss();
        if !options.quiet {
            say(&format!("all rows are there in {}", recorder.folder().display()));
        }
        (Ok(()), None)
    } else {
        let (effort, seed) = (options.effort(), options.seed);
        let job = Job { steps: Vec::new(), first: rest.measured, effort, seed };
        if let Err(failure) = run.begin(&rest, &job, ranks) {
            recorder.discard();
            return Err(failure);
        }
        let host = run.hosts.iter().position(|host| host.ranks.contains(&Rank(0))).unwrap_or(0);
        let topology = run.hosts[host].topology.clone();
        let mut worker = Worker::new(ranks, transports, topology, host, &job);
        worker.keep_up(rest.steps);
        worker.lead(&run.hosts, request.is_check);
        let estimate = run.estimate(rest.steps);
        run.say_estimate(&estimate, rest.steps);
        let leader = Leader::new(&run, worker, &mut recorder, &rest, &estimate);
        let Measured { result, took, problems } = leader.measure_all(rest.steps, &estimate);
        run.problems.extend(problems);
        run.left_out.clone_from(&ranks.left_out);
        (result, Some(took))
    };
    let check = request.is_check.then(|| run.check(&recorder));
    // The page shows them.
    let kept = check.as_ref().map_or(Ok(()), |check| check::keep(check, recorder.folder()));
    let shown = run.show_results(&recorder, check.as_ref(), took);
    let ending = match &check {
        Some(check) => run.conclude_check(check),
        None => Ok(Ending::of(is_well(&recorder, options.fail_below))),
    };
    measured?;
    kept?;
    shown.map_err(|err| Failure::Middle(format!("cannot print the results: {err}")))?;
    ending
}

/// A planned run, as rank 0 knows it.
pub(super) struct Run<'a> {
    pub(super) options: &'a Options,
    /// What they ask for.
    pub(super) request: &'a Request,
    pub(super) hosts: Vec<Host>,
    /// Those of a check that did not answer before it was planned.
    pub(super) lost: Vec<Host>,
    /// Where the simulated machine is, if it is one: for ranks that this process starts.
    simulation: Option<String>,
    pub(super) judge: Judge,
    /// What the doctor has found, for a check.
    pub(super) problems: Vec<Problem>,
    /// The ranks without which it goes on.
    pub(super) left_out: BTreeSet<Rank>,
    /// What a check judges by beside what is known of the machine.
    pub(super) baseline: Baseline,
    pub(super) steps: Vec<Step>,
    is_launched: bool,
}

impl Run<'_> {
    fn provenance(&self, ranks: &Ranks) -> Provenance {
        let options = self.options;
        Provenance::collect(
            options.seed,
            options.effort(),
            options.simulate.clone(),
            ranks.world.library(),
            &self.hosts,
        )
    }

    /// Opens the files of a new run, or of the run to resume.
    fn open(&self, provenance: &Provenance) -> Result<Recorder, Failure> {
        let options = self.options;
        let given = options.resume.as_deref().or(options.output.as_deref());
        let folder = free_folder(given, &provenance.folder_name());
        interrupt::has_to_lose(END, remedy(&folder));
        match options.resume {
            Some(_) => {
                let steps = |rows: &[Row]| self.all_steps(rows);
                resume::take_up(&folder, options, provenance, &steps)
            }
            None => Recorder::create(&folder, provenance).map_err(Failure::start),
        }
    }

    pub(super) fn estimate(&self, steps: &[Step]) -> Estimate {
        estimate(steps, self.options.effort(), &self.judge, &self.hosts)
    }

    /// Says how many rows `steps` are, and how long they take.
    fn say_estimate(&self, estimate: &Estimate, steps: &[Step]) {
        if self.options.quiet {
            return;
        }
        let sizes: BTreeSet<Bytes> = steps.iter().flat_map(Step::cases).map(|c| c.size).collect();
        let sizes = match (sizes.first(), sizes.last()) {
            (Some(least), Some(most)) if least == most => format!(" of {least}"),
            (Some(least), Some(most)) => format!(" of {least} to {most}"),
            _ => String::new(),
        };
        let rows: usize = steps.iter().map(Step::rows).sum();
        let all = estimate.all + self.options.check.burn_in.unwrap_or_default();
        let (rows, time) = (count(rows, "row"), readable_wait(all.as_secs_f64()));
        say(&format!("{rows}{sizes}, about {time}{}", self.whose_time()));
    }

    /// Whose time a duration is, if not this machine's.
    pub(super) fn whose_time(&self) -> &'static str {
        if self.options.simulate.is_some() { " of the simulated machine" } else { "" }
    }

    /// Starts the other ranks unless a launcher has, and sends each rank its job. Returns when all
    /// ranks have it.
    fn begin(&self, rest: &Rest<'_>, job: &Job, ranks: &mut Ranks) -> Result<(), Failure> {
        let fail = |err| if self.is_launched { Failure::middle(err) } else { Failure::start(err) };
        let Options { asked, deadline, fabric_lib, nccl, .. } = self.options;
        if !self.is_launched {
            let Host { ranks: own, topology, .. } = &self.hosts[0];
            let here = Here {
                topology: topology.clone(),
                fabric_lib: fabric_lib.clone(),
                nccl_lib: nccl.nccl_lib.clone(),
            };
            let told = Told { simulation: self.simulation.clone(), task: Task::Measure(here) };
            let count = u32::try_from(own.len()).unwrap_or(u32::MAX);
            let variables = |rank| asked.nccl.of_rank(rank).variables;
            ranks.start(count, *deadline, variables, told).map_err(fail)?;
        }
        let parts = steps::parts(rest.steps, &self.hosts, ranks.world.members());
        let jobs = parts.into_iter().map(|steps| Some(Job { steps, ..job.clone() }));
        ranks.tell(jobs.collect()).map_err(fail)?;
        ranks.world.barrier().map_err(fail)
    }
}

/// The problem of a rank that was lost in `step`.
fn problem(step: &Step, lost: &Lost) -> Option<Problem> {
    check::lost_rank(lost, check::stage(step)?)
}

/// What rank 0 needs to measure and record.
struct Leader<'a> {
    run: &'a Run<'a>,
    recorder: &'a mut Recorder,
    worker: Worker<'a>,
    progress: Progress,
    /// Finds the path of NCCL's data.
    proof: Proof,
    /// What has been reported about GPUs.
    notes: Notes,
    /// When the first row began.
    began: Moment,
    /// The number of rows of the whole run.
    rows: usize,
    /// Number of the next row. In a resumed run the first ones may be recorded already.
    next: usize,
    /// The rounds of a burn-in, from the first on.
    burn_in: Option<BurnIn>,
    /// The ranks that did not answer.
    problems: Vec<Problem>,
}

/// How the measuring of a run has ended.
struct Measured {
    result: Result<(), Failure>,
    took: Duration,
    problems: Vec<Problem>,
}

impl<'a> Leader<'a> {
    /// For a run of which `rest` is left to measure.
    fn new(
        run: &'a Run<'_>,
        worker: Worker<'a>,
        recorder: &'a mut Recorder,
        rest: &Rest<'_>,
        estimate: &Estimate,
    ) -> Self {
        let options = run.options;
        // A run that is resumed with other GPUs keeps the topology that it began with.
        if !options.resume_changed
            && let Err(err) = record::keep_topology(recorder.folder(), &survey::told().0)
        {
            say(&format!("warning: {err}"));
        }
        let rows = rest.row - 1 + rest.steps.iter().map(Step::rows).sum::<usize>();
        let left = Left::new(estimate.weights.iter().copied().flatten());
        let progress = Progress::new(rows, recorder.rows().len(), left, options.verbosity());
        progress.begin_run(recorder.folder());
        let (proof, notes) = (Proof::default(), Notes::default());
        let (began, next) = (machine_now(), rest.row);
        Self {
            run,
            recorder,
            worker,
            progress,
            proof,
            notes,
            began,
            rows,
            next,
            burn_in: None,
            problems: Vec::new(),
        }
    }

    /// Measures and records all steps, then the end of the run. After a failure the other ranks are
    /// out of reach, so only this rank's own logs and health are recorded.
    fn measure_all(mut self, steps: &[Step], estimate: &Estimate) -> Measured {
        let before = self.recorder.rows().len();
        let result = self.measure(steps, estimate);
        let result = result.and_then(|()| self.measure_more()).and_then(|()| self.take_leave());
        if result.is_err() {
            // The first failure is the one to report.
            let own = self.worker.own_leave();
            let _ = self.conclude(vec![own]);
        }
        self.progress.finish();
        let took = machine_now().since(self.began);
        // The answer says it too.
        let Options { quiet, format, .. } = self.run.options;
        if !quiet && !matches!(format, Format::Table | Format::Markdown) {
            let rows = count(self.recorder.rows().len() - before, "row");
            let time = readable_wait(took.as_secs_f64());
            say(&format!("measured {rows} in {time}{}", self.run.whose_time()));
        }
        Measured { result, took, problems: self.problems }
    }

    /// Measures and records each step. Ends early if a row cannot be recorded or a rank is lost.
    fn measure(&mut self, steps: &[Step], estimate: &Estimate) -> Result<(), Failure> {
        for (step, &weight) in steps.iter().zip(&estimate.weights) {
            self.may_go_on()?;
            if let Step::Absent { transport, reason, .. } = step {
                self.record(Row::absent(self.next, *transport, reason), &[])?;
                continue;
            }
            if let Some((case, weight)) = step.cases().next().zip(weight) {
                self.progress.begin(case, weight);
            }
            let began = machine_now();
            let measured = self.worker.measure(step);
            let time = machine_now().since(began);
            self.progress.end();
            let StepResult { mut cases, lost, left_out } = measured.unwrap_or_else(|err| {
                StepResult { lost: Some(err.into()), ..StepResult::default() }
            });
            let before = self.recorder.rows().len();
            if self.burn_in.is_none() && self.run.are_second(self.recorder.rows(), before) {
                cases.iter_mut().for_each(|(_, result)| result.set_second());
            }
            if let Some(left_out) = left_out {
                self.leave_out(&left_out.lost, step);
            }
            for place in 0..step.places() {
                let Some(case) = step.case(place) else { continue };
                let result = cases.iter().find(|(of, _)| *of == place);
                let alone = matches!(step, Step::OnEachHost(_)).then_some(place);
                match result {
                    Some((_, result)) => self.take(case, result, time, alone)?,
                    None if self.worker.is_left_out(step, place) => {
                        let reason = "a host of it does not answer any more".to_owned();
                        let row = Row { reason, ..Row::planned(self.next, case) };
                        self.record(self.at(row, case, alone), &[])?;
                    }
                    None => {}
                }
            }
            if let Some(lost) = lost {
                let reason = lost.reason.clone();
                self.problems.extend(problem(step, &lost));
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

    /// Measures what the rows so far call for, until they call for nothing.
    fn measure_more(&mut self) -> Result<(), Failure> {
        loop {
            let rows = self.recorder.rows();
            let all = self.run.all_steps(rows);
            let mut steps = Rest::of(&all, rows.len()).steps.to_vec();
            let more = steps.iter().map(Step::rows).sum();
            if steps.is_empty() && self.has_round()? {
                let planned = self.run.steps.iter().cloned();
                steps = planned.filter(|step| !matches!(step, Step::Absent { .. })).collect();
            }
            let members = self.worker.ranks.world.members();
            let parts = steps::parts(&steps, &self.run.hosts, members);
            self.worker.go_on(Some(parts)).map_err(Failure::middle)?;
            if steps.is_empty() {
                return Ok(());
            }
            let estimate = self.run.estimate(&steps);
            self.rows += more;
            self.progress.more(more, estimate.weights.iter().copied().flatten());
            self.measure(&steps, &estimate)?;
            if let Some(burn_in) = &mut self.burn_in {
                let round = burn_in.end().map_err(Failure::middle)?;
                round.iter().for_each(|round| self.progress.round(round));
            }
        }
    }

    /// Begins the next round of a burn-in, if there is one.
    fn has_round(&mut self) -> Result<bool, Failure> {
        let Some(time) = self.run.options.check.burn_in else { return Ok(false) };
        if self.burn_in.is_none() {
            let (folder, rows) = (self.recorder.folder(), self.recorder.rows());
            let burn_in = BurnIn::new(folder, time, rows, self.run.planned_rows());
            self.burn_in = Some(burn_in.map_err(Failure::middle)?);
        }
        // Rows of rounds before are in no plan.
        self.next = self.recorder.rows().len() + 1;
        Ok(self.burn_in.as_mut().is_some_and(BurnIn::begin))
    }

    /// Says without whom the run goes on since `step`.
    fn leave_out(&mut self, lost: &[Lost], step: &Step) {
        for lost in lost {
            let is_on = |host: &&Host| host.ranks.iter().any(|rank| Some(*rank) == lost.rank);
            let host = self.run.hosts.iter().find(is_on);
            host.into_iter().for_each(|host| self.progress.say(&check::without(host, lost)));
        }
        self.problems.extend(lost.iter().filter_map(|lost| problem(step, lost)));
    }

    /// The row of `case` with where it is; `alone`: the host that measures it by itself.
    fn at(&self, row: Row, case: &Case, alone: Option<usize>) -> Row {
        let hosts = &self.run.hosts;
        let row = row.on(hosts);
        let members = case.members();
        let has_part = |host: &&Host| host.ranks.iter().any(|rank| members.contains(rank));
        let is_of_group = self.run.options.asked.is_check && case.collective().is_some();
        let row = match alone.filter(|_| hosts.len() > 1) {
            Some(host) => row.within(&hosts[host], &hosts[host]),
            None if is_of_group && hosts.len() > 1 => {
                let first = hosts.iter().find(has_part);
                match first.zip(hosts.iter().rfind(has_part)) {
                    Some((first, last)) => row.within(first, last),
                    None => row,
                }
            }
            None => row,
        };
        row.with_nccl_env(&self.run.options.asked.nccl.variables)
    }

    /// Makes and records the row of a case that took `time`: its numbers, its path, its verdict;
    /// `alone`: the host that measured it by itself.
    fn take(
        &mut self,
        case: &Case,
        result: &CaseResult,
        time: Duration,
        alone: Option<usize>,
    ) -> Result<(), Failure> {
        let (row, latencies) = match &result.outcome {
            Some(Ok(outcome)) => {
                let row = Row::new(self.next, case, outcome);
                (self.proven(row, case, outcome)?, outcome.latencies())
            }
            Some(Err(reason)) => {
                // After a signal the failure is not the case's: the run ends without this row.
                self.may_go_on()?;
                (Row::failed(self.next, case, reason), Vec::new())
            }
            None => return Ok(()),
        };
        if let Some(burn_in) = &mut self.burn_in {
            burn_in.heat(case.transport, &result.seen);
        }
        let row = self.notes.row(row, case, result);
        let row = self.at(row, case, alone);
        let row = Row { machine_seconds: Some(time.as_secs_f64()), ..row };
        self.record(self.run.judge.judged(row, case, &self.run.hosts), &latencies)
    }

    /// Ends the run if a signal asks for it.
    fn may_go_on(&self) -> Result<(), Failure> {
        match interrupt::asked() {
            Some(signal) => Err(self.end(format!("interrupted by {}", signal.name()))),
            None => Ok(()),
        }
    }

    /// The failure of a run that ends before its last row.
    fn end(&self, reason: String) -> Failure {
        let remedy = remedy(self.recorder.folder());
        Failure::Middle(match self.rows - self.recorder.rows().len() {
            0 => reason,
            1 => format!("{reason}; 1 row was not measured: {remedy}"),
            left => format!("{reason}; {left} rows were not measured: {remedy}"),
        })
    }

    /// Ends the run with the other ranks after the last step.
    fn take_leave(&mut self) -> Result<(), Failure> {
        let leaves = self.worker.take_leave().map_err(Failure::middle)?;
        self.conclude(leaves.unwrap_or_default())?;
        self.worker.ranks.world.barrier().map_err(Failure::middle)
    }

    /// Records the end of each rank's NCCL log and the health of its GPUs.
    fn conclude(&mut self, leaves: Vec<Leave>) -> Result<(), Failure> {
        let mut health = Vec::new();
        for (rank, text, of_host) in leaves {
            self.record_log(rank, text)?;
            health.extend(of_host);
        }
        self.recorder.conclude(health).map_err(Failure::middle)
    }

    fn record_log(&self, rank: Rank, text: Option<String>) -> Result<(), Failure> {
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(()) };
        let written = self.recorder.append_nccl_log(rank, &text);
        written.map_err(Failure::middle)
    }

    /// Adds to the row of a collective the path of its data, according to NCCL's log.
    fn proven(&mut self, row: Row, case: &Case, outcome: &Outcome) -> Result<Row, Failure> {
        let Outcome::Measured(measured) = outcome else { return Ok(row) };
        if case.collective().is_none() {
            return Ok(row);
        }
        let is_new = self.burn_in.is_none();
        for (rank, text) in measured.log.iter().flatten().filter(|_| is_new) {
            self.record_log(*rank, Some(text.clone()))?;
        }
        Ok(self.proof.row(row, case, measured.log.as_deref()))
    }

    fn record(&mut self, row: Row, latencies: &[(Option<Rank>, Latency)]) -> Result<(), Failure> {
        let row = Row { simulated: self.run.options.simulate.is_some(), ..row };
        let row = match &mut self.burn_in {
            Some(burn_in) => {
                let Some(row) = burn_in.changed(row) else { return Ok(()) };
                self.rows += 1;
                self.progress.more(1, []);
                row
            }
            // A resumed run may have some rows of a step that hosts measured at the same time.
            None if row.case <= self.recorder.rows().len() => {
                self.next += 1;
                return Ok(());
            }
            None => row,
        };
        self.next += 1;
        let written = self.recorder.append(row.clone(), latencies);
        written.map_err(|err| self.end(err.to_string()))?;
        self.progress.row(&row);
        Ok(())
    }
}
