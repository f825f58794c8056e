//! `g2g sweep`: runs a plan, each run in processes of its own, and says what the results mean.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{self, ExitStatus, Stdio},
    time::Duration,
};

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::{Answer, Cli, Command, print};
use crate::{
    analysis::sweep::{findings, sound},
    interrupt,
    plan::sweep::{Plan, Run},
    record::{
        self, files,
        provenance::SweepProvenance,
        sweep::{Csv, Ended, write_json},
    },
    run::{self, Failure, Format, Options, free_folder, watch, write_own},
    show,
    show::progress::Runs,
    show::sweep::Results,
    stderr::say,
    world::{Launcher, child},
};

/// What must be the same when a sweep goes on, by its place in sweep.json.
const SAME: [(&str, &str); 6] = [
    ("/version", "version of g2g"),
    ("/git_revision", "revision of g2g"),
    ("/architecture", "architecture"),
    ("/machine/hostname", "host"),
    ("/machine/product", "machine"),
    ("/machine/cpu_model", "processor"),
];

/// The flags of `g2g sweep`.
#[derive(Clone, Debug, Args)]
pub struct Sweep {
    /// What to run, as README.md explains; there are some in scripts/plans. Paths in it are from
    /// the folder in which g2g is called
    #[arg(value_name = "PLAN.toml", required_unless_present = "resume")]
    plan: Option<PathBuf>,

    /// Go on with the sweep in this folder: run what was not run to its end, or failed, by the plan
    /// that is there; then print the results of all
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["output", "dry_run"])]
    resume: Option<PathBuf>,

    /// Folder for the results, made anew [default: results/TIME-sweep-MACHINE, with the time in
    /// UTC]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// Form of the results on standard output
    #[arg(long, value_enum, default_value_t = SweepFormat::Table)]
    format: SweepFormat,

    /// Check every combination, print the runs in their order and run none
    #[arg(long, conflicts_with_all = ["format", "output"])]
    dry_run: bool,

    /// No progress; errors only
    #[arg(short, long)]
    quiet: bool,
}

/// The forms of a sweep's results on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SweepFormat {
    /// Tables for a person
    Table,
    /// The text of sweep.csv
    Csv,
    /// The text of sweep.json
    Json,
}

/// A plan, and the folder of its results.
struct Folder {
    plan: Plan,
    /// The plan's file.
    text: String,
    provenance: Value,
    folder: PathBuf,
    /// Held as long as this process works in the folder.
    _lock: File,
}

impl Sweep {
    /// Runs a plan, or what is left of it; whether all runs ended well.
    pub(super) fn run(&self, launcher: Option<&Launcher>) -> Result<bool, Failure> {
        watch(true)?;
        if let Some(launcher) = launcher {
            return Err(Failure::Start(format!(
                "a launcher has started {} ranks ({}): start the sweep without it, and name it in the \
                 plan, as launcher = \"mpirun -np {}\"",
                launcher.ranks, launcher.variable, launcher.ranks
            )));
        }
        let sweep = match (&self.resume, &self.plan) {
            (Some(folder), plan) => resume(folder, plan.as_deref())?,
            (None, Some(path)) => {
                let (plan, text) = read(path)?;
                check(&plan, path)?;
                if self.dry_run {
                    return print(&listing(&plan));
                }
                begin(plan, text, self.output.as_deref())?
            }
            (None, None) => return Err(Failure::Start("no plan was given".to_owned())),
        };
        // A run has its own time to end, which is shorter.
        let remedy = remedy(&sweep.folder);
        interrupt::has_to_lose(run::END + Duration::from_millis(500), remedy);
        sweep.run(self)
    }
}

/// How to go on with a sweep that has ended early.
fn remedy(folder: &Path) -> String {
    format!("`g2g sweep --resume {}` goes on", folder.display())
}

/// Reads a plan.
fn read(path: &Path) -> Result<(Plan, String), Failure> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|err| Failure::Start(format!("cannot read the plan {shown}: {err}")))?;
    let plan = Plan::read(&text);
    let plan = plan.map_err(|err| Failure::Start(format!("plan {shown}, {err}")))?;
    Ok((plan, text))
}

/// Holds every combination against what g2g takes, before any is run.
fn check(plan: &Plan, path: &Path) -> Result<(), Failure> {
    for (number, combination) in plan.combinations.iter().enumerate() {
        let refuse = |reason: &str| {
            let (shown, what) = (path.display(), plan.describe(number));
            Failure::Start(format!("plan {shown}, combination {what}: {reason}"))
        };
        let options = measuring(&combination.words).map_err(|reason| refuse(&reason))?;
        let is_own = options.output.is_some() || options.dry_run || options.format != Format::Table;
        if is_own || options.resume.is_some() || options.quiet || options.verbose {
            return Err(refuse(
                "--output, --resume, --dry-run, --format, --quiet and --verbose are the sweep's own: \
                 leave them out of the plan",
            ));
        }
        let mut command = command(plan, &combination.words)?;
        command.args(["--dry-run", "--quiet"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let (status, said) =
            child::run(command).map_err(|err| refuse(&cannot_start(plan, &err)))?;
        if !status.success() {
            return Err(refuse(&reason(status, &said)));
        }
    }
    Ok(())
}

/// What the words of a run mean, if it measures.
fn measuring(words: &[String]) -> Result<Options, String> {
    let all = ["g2g".to_owned()].into_iter().chain(words.iter().cloned());
    match Cli::read(all.map(Into::into)) {
        Ok(Cli { command: Command::Measure(measure) }) => Ok(measure.options()),
        Ok(_) => Err(format!(
            "`{}` measures nothing: write run, local, p2p, shm, nccl or rdma",
            words.first().map_or("", String::as_str)
        )),
        Err(Answer::Refused(sentence)) => Err(sentence),
        Err(_) => Err("its words ask for help: leave out --help and --version".to_owned()),
    }
}

/// A run of these words: the launcher's before g2g's own.
fn command(plan: &Plan, words: &[String]) -> Result<process::Command, Failure> {
    let own = env::current_exe()
        .map_err(|err| Failure::Start(format!("cannot find g2g's own program file: {err}")))?;
    let mut command = match plan.launcher.split_first() {
        Some((launcher, more)) => {
            let mut command = process::Command::new(launcher);
            command.args(more).arg(own);
            command
        }
        None => process::Command::new(own),
    };
    command.args(words).stdin(Stdio::null());
    Ok(command)
}

fn cannot_start(plan: &Plan, err: &io::Error) -> String {
    let program = plan.launcher.first().map_or("g2g", String::as_str);
    format!("cannot start {program}: {err}")
}

/// Why a run did not end well: what it said of it, else how it ended.
fn reason(status: ExitStatus, said: &str) -> String {
    if let Some(signal) = status.signal() {
        return format!("killed by signal {signal}");
    }
    let error = said.lines().find_map(|line| line.strip_prefix("error: "));
    let last = || said.lines().rev().map(str::trim).find(|line| !line.is_empty());
    let code = status.code().unwrap_or_default();
    error.or_else(last).map_or_else(|| format!("exit code {code}"), str::to_owned)
}

/// The runs in their order.
fn listing(plan: &Plan) -> String {
    let runs = plan.runs();
    let (combinations, repetitions) = (plan.combinations.len(), plan.repetitions);
    let mut text = format!("{} runs: {combinations} combinations × {repetitions}\n", runs.len());
    for run in runs {
        let what = plan.describe(run.combination);
        let words = [plan.launcher.clone(), vec!["g2g".to_owned()], words(plan, &run)].concat();
        let Run { number, repetition, .. } = run;
        let line = format!("{number:4}  repetition {repetition}  {what}  {}\n", words.join(" "));
        text.push_str(&line);
    }
    text
}

/// The words of a run. Each has a seed of its own, unless the plan has one: what one seed does to
/// two combinations alike would hide what chance does.
fn words(plan: &Plan, run: &Run) -> Vec<String> {
    let mut words = plan.combinations[run.combination].words.clone();
    if !words.iter().any(|word| word == "--seed" || word.starts_with("--seed=")) {
        words.extend(["--seed".to_owned(), run.number.to_string()]);
    }
    words
}

/// Makes the folder of a new sweep.
fn begin(plan: Plan, text: String, output: Option<&Path>) -> Result<Folder, Failure> {
    let provenance = SweepProvenance::collect();
    let folder = output.map_or_else(|| free_folder(&provenance.folder_name()), Path::to_owned);
    let refuse = |reason: String| {
        let shown = folder.display();
        Failure::Start(format!("cannot use {shown} for the results: {reason}"))
    };
    let path = folder.join("sweep.toml");
    if path.symlink_metadata().is_ok() {
        let reason = "it already holds a sweep: go on with --resume, or name another with --output";
        return Err(refuse(reason.to_owned()));
    }
    let make = || {
        files::make_folder(&folder)?;
        files::make_folder(&folder.join("runs"))?;
        files::create(&path)?.write_all(text.as_bytes())
    };
    make().map_err(|err| refuse(format!("{err}; name another with --output")))?;
    let provenance = serde_json::to_value(provenance);
    let provenance = provenance.map_err(|err| Failure::Start(err.to_string()))?;
    let lock = lock(&folder)?;
    let sweep = Folder { plan, text, provenance, folder, _lock: lock };
    // It says from now on whose the folder is.
    let results = sweep.results(&[], &[], false);
    let written = write_json(&sweep.folder.join("sweep.json"), &results.json());
    written.map_err(|err| Failure::Start(err.to_string()))?;
    Ok(sweep)
}

/// Takes up the sweep in a folder.
fn resume(folder: &Path, plan: Option<&Path>) -> Result<Folder, Failure> {
    let shown = folder.display();
    let refuse = |reason: String| Failure::Start(format!("cannot go on in {shown}: {reason}"));
    let path = folder.join("sweep.toml");
    if !path.is_file() {
        return Err(refuse("it has no sweep.toml: name the folder of a sweep".to_owned()));
    }
    let lock = lock(folder)?;
    let (own, text) = read(&path)?;
    let document = fs::read_to_string(folder.join("sweep.json"));
    let document = document.map_err(|err| {
        refuse(format!("cannot read sweep.json: {err}; begin anew with another --output"))
    })?;
    let document: Value = serde_json::from_str(&document).map_err(|err| {
        refuse(format!(
            "sweep.json is not as g2g writes it ({err}): begin anew with another --output"
        ))
    })?;
    if document["plan"] != text {
        let reason =
            "sweep.toml is not the plan that it began with: begin anew with another --output";
        return Err(refuse(reason.to_owned()));
    }
    if let Some(plan) = plan
        && read(plan)?.1 != text
    {
        let reason =
            format!("{} is another plan than its sweep.toml: leave it out", plan.display());
        return Err(refuse(reason));
    }
    let provenance = document["provenance"].clone();
    let here = serde_json::to_value(SweepProvenance::collect());
    let here = here.map_err(|err| Failure::Start(err.to_string()))?;
    for (place, what) in SAME {
        let (then, now) = (provenance.pointer(place), here.pointer(place));
        if then != now {
            let shown = |value: Option<&Value>| {
                value.and_then(Value::as_str).unwrap_or("unknown").to_owned()
            };
            let (then, now) = (shown(then), shown(now));
            let reason = format!("the {what} was {then} and is {now}: begin anew here");
            return Err(refuse(reason));
        }
    }
    Ok(Folder { plan: own, text, provenance, folder: folder.to_owned(), _lock: lock })
}

/// Keeps a second sweep out of the folder, until this process ends.
fn lock(folder: &Path) -> Result<File, Failure> {
    let shown = folder.display();
    let file = File::open(folder.join("sweep.toml"))
        .map_err(|err| Failure::Start(format!("cannot open {shown}/sweep.toml: {err}")))?;
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => Err(Failure::Start(format!(
            "another g2g works in {shown}: wait until it has ended, or name another folder"
        ))),
        // A file system without locks is no reason to run nothing.
        Ok(()) | Err(fs::TryLockError::Error(_)) => Ok(file),
    }
}

impl Folder {
    /// Runs what was not run yet, and shows the results of all; whether all ended well.
    fn run(&self, options: &Sweep) -> Result<bool, Failure> {
        let middle = |err: record::Error| Failure::Middle(err.to_string());
        let runs = self.plan.runs();
        let missing = runs.iter().filter(|run| !self.finished(run).is_dir()).count();
        if !options.quiet {
            let shown = self.folder.display();
            say(&format!("results: {shown}; if it is interrupted, {}", remedy(&self.folder)));
        }
        let progress = Runs::new(missing, options.quiet);
        let csv = self.folder.join("sweep.csv");
        let mut rows = Csv::create(&csv, &self.plan).map_err(middle)?;
        let (mut ended, mut all) = (Vec::new(), Vec::new());
        for run in runs {
            let finished = self.finished(&run);
            let failure = match finished.is_dir() {
                true => None,
                false if interrupt::asked().is_some() => continue,
                false => {
                    progress.begin(&self.plan.describe(run.combination));
                    let failure = self.run_one(&run)?;
                    if failure.is_some() && interrupt::asked().is_some() {
                        continue;
                    }
                    progress.end(failure.as_deref());
                    failure
                }
            };
            let folder = if failure.is_none() { finished } else { self.unfinished(&run) };
            let one = Ended { run, failure };
            all.push((run, rows.append(&self.plan, &one, &folder).map_err(middle)?));
            ended.push(one);
        }
        progress.finish();
        let is_simulated = all.iter().flat_map(|(_, rows)| rows).any(|row| row.simulated);
        let cases = sound(&self.plan, &ended, all);
        let findings = findings(&self.plan, &cases);
        let results = self.results(&ended, &findings, is_simulated);
        let json = results.json();
        write_json(&self.folder.join("sweep.json"), &json).map_err(middle)?;
        write_own(&self.folder);
        let text = match options.format {
            SweepFormat::Table => Ok(results.tables()),
            SweepFormat::Csv => fs::read_to_string(&csv),
            SweepFormat::Json => Ok(json),
        };
        let shown = text.and_then(|text| show::print(&text));
        shown.map_err(|err| Failure::Middle(format!("cannot print the results: {err}")))?;
        if let Some(signal) = interrupt::asked().filter(|_| ended.len() < self.plan.runs().len()) {
            let (name, remedy) = (signal.name(), remedy(&self.folder));
            return Err(Failure::Middle(format!("interrupted by {name}: {remedy}")));
        }
        Ok(ended.iter().all(|ended| ended.failure.is_none()))
    }

    /// Runs one, in a folder that gets its final name when it has ended well; why it has not.
    fn run_one(&self, run: &Run) -> Result<Option<String>, Failure> {
        let (unfinished, finished) = (self.unfinished(run), self.finished(run));
        let cannot =
            |err: io::Error| Failure::Middle(format!("cannot use {}: {err}", unfinished.display()));
        match fs::remove_dir_all(&unfinished) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(cannot(err)),
            _ => files::make_folder(&unfinished).map_err(cannot)?,
        }
        let log = unfinished.join("stderr.log");
        let mut command = command(&self.plan, &words(&self.plan, run))?;
        command.args(["--quiet", "--no-report", "--output"]).arg(&unfinished).stdout(Stdio::null());
        command.stderr(files::create(&log).map_err(cannot)?);
        let status = match child::run(command) {
            Ok((status, _)) => status,
            Err(err) => return Ok(Some(cannot_start(&self.plan, &err))),
        };
        if status.success() {
            fs::rename(&unfinished, finished).map_err(cannot)?;
            return Ok(None);
        }
        let said = fs::read(&log).unwrap_or_default();
        Ok(Some(reason(status, &String::from_utf8_lossy(&said))))
    }

    /// Where a run is that has ended well.
    fn finished(&self, run: &Run) -> PathBuf {
        self.folder.join("runs").join(format!("{:03}", run.number))
    }

    /// Where a run is that has not.
    fn unfinished(&self, run: &Run) -> PathBuf {
        self.folder.join("runs").join(format!("{:03}.part", run.number))
    }

    fn results<'a>(
        &'a self,
        ended: &'a [Ended],
        findings: &'a [crate::analysis::sweep::Findings],
        simulated: bool,
    ) -> Results<'a> {
        let Self { plan, text, provenance, .. } = self;
        Results { plan, text, provenance, ended, findings, simulated }
    }
}
