//! `g2g sweep`: runs a plan, each run in its own processes, and analyses the results.

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
        files,
        provenance::SweepProvenance,
        sweep::{Csv, Ended, write_json},
    },
    run::{self, Failure, Format, Options, differences, free_folder, watch, write_own},
    show,
    show::progress::Runs,
    show::sweep::Results,
    stderr::say,
    world::{Launcher, child},
};

/// What must be unchanged when a sweep continues, and its place in sweep.json.
const SAME: [(&str, &str); 6] = [
    ("version of g2g", "/version"),
    ("revision of g2g", "/git_revision"),
    ("architecture", "/architecture"),
    ("host", "/machine/hostname"),
    ("machine", "/machine/product"),
    ("processor", "/machine/cpu_model"),
];

/// The flags of `g2g sweep`.
#[derive(Clone, Debug, Args)]
pub struct Sweep {
    /// Plan file, as docs/guide.md explains; scripts/plans has examples. Paths in it are relative to
    /// the current folder
    #[arg(value_name = "PLAN.toml", required_unless_present = "resume")]
    plan: Option<PathBuf>,

    /// Continue the sweep in this folder: run what did not finish, or failed, by its plan; then
    /// print the results of all runs
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["output", "dry_run"])]
    resume: Option<PathBuf>,

    /// Simulate a machine in every run of the plan, as g2g run --simulate does
    #[arg(long, value_name = "MACHINE", conflicts_with = "resume")]
    simulate: Option<String>,

    /// New folder for the results [default: results/TIME-sweep-MACHINE, with the time in UTC]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// Format of the results on standard output
    #[arg(long, value_enum, default_value_t = SweepFormat::Table)]
    format: SweepFormat,

    /// Check every combination and print the runs in order, but run none
    #[arg(long, conflicts_with_all = ["format", "output"])]
    dry_run: bool,

    /// No progress; errors only
    #[arg(short, long)]
    quiet: bool,
}

/// The formats of a sweep's results on standard output.
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
    /// Runs a plan, or the rest of it; whether all runs succeeded.
    pub(super) fn run(&self, launcher: Option<&Launcher>) -> Result<bool, Failure> {
        watch(true)?;
        if let Some(launcher) = launcher {
            return Err(Failure::Start(format!(
                "a launcher has started {} ranks ({}): start the sweep without it, and name it in \
                 the plan, as launcher = \"mpirun -np {}\"",
                launcher.ranks, launcher.variable, launcher.ranks
            )));
        }
        let sweep = match (&self.resume, &self.plan) {
            (Some(folder), plan) => resume(folder, plan.as_deref())?,
            (None, Some(path)) => {
                let (plan, text) = read(path)?;
                let plan = simulated(plan, self.simulate.as_deref());
                check(&plan, path)?;
                if self.dry_run {
                    return print(&listing(&plan));
                }
                let provenance = SweepProvenance::collect(self.simulate.clone());
                begin(plan, text, &provenance, self.output.as_deref())?
            }
            (None, None) => return Err(Failure::Start("no plan was given".to_owned())),
        };
        // A run has less time to end than the sweep.
        let remedy = remedy(&sweep.folder);
        interrupt::has_to_lose(run::END + Duration::from_millis(500), remedy);
        sweep.run(self)
    }
}

/// How to continue an interrupted sweep.
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

/// The plan with a machine that is simulated in each of its runs, if one is.
fn simulated(mut plan: Plan, machine: Option<&str>) -> Plan {
    for combination in &mut plan.combinations {
        combination.words.extend(machine.map(|machine| format!("--simulate={machine}")));
    }
    plan
}

/// Checks every combination, with `--dry-run`, before any is run.
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
                "--output, --resume, --dry-run, --format, --quiet and --verbose are the sweep's \
                 own: leave them out of the plan",
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

/// Parses the words of a run.
fn measuring(words: &[String]) -> Result<Options, String> {
    match Cli::read(["g2g"].into_iter().chain(words.iter().map(String::as_str)).map(Into::into)) {
        Ok(Cli { command: Command::Measure(measure) }) => Ok(measure.options()),
        Err(Answer::Refused(sentence)) => Err(sentence),
        // The plan names only commands that measure.
        Ok(_) | Err(_) => Err("its words ask for help: leave out --help and --version".to_owned()),
    }
}

/// The command of a run: the launcher's words before g2g's.
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

/// Why a run failed: its own error message, otherwise how it ended.
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

/// The words of a run. Each run has its own seed, unless the plan sets one: a shared seed would
/// hide the effect of chance.
fn words(plan: &Plan, run: &Run) -> Vec<String> {
    let mut words = plan.combinations[run.combination].words.clone();
    if !words.iter().any(|word| word == "--seed" || word.starts_with("--seed=")) {
        words.extend(["--seed".to_owned(), run.number.to_string()]);
    }
    words
}

/// Makes the folder of a new sweep.
fn begin(
    plan: Plan,
    text: String,
    provenance: &SweepProvenance,
    output: Option<&Path>,
) -> Result<Folder, Failure> {
    let folder = free_folder(output, &provenance.folder_name());
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
    let provenance = serde_json::to_value(provenance).map_err(Failure::start)?;
    let lock = lock(&folder)?;
    let sweep = Folder { plan, text, provenance, folder, _lock: lock };
    // From now on it marks the folder as a sweep's.
    let results = sweep.results(&[], &[], false);
    let written = write_json(&sweep.folder.join("sweep.json"), &results.json());
    written.map_err(Failure::start)?;
    Ok(sweep)
}

/// Opens the sweep in a folder, to continue it.
fn resume(folder: &Path, plan: Option<&Path>) -> Result<Folder, Failure> {
    let shown = folder.display();
    let refuse = |reason: String| Failure::Start(format!("cannot go on in {shown}: {reason}"));
    let path = folder.join("sweep.toml");
    if !path.is_file() {
        return Err(refuse("it has no sweep.toml: name the folder of a sweep".to_owned()));
    }
    let lock = lock(folder)?;
    let (own, text) = read(&path)?;
    let anew = |reason: String| refuse(format!("{reason}: begin anew with another --output"));
    let document = fs::read_to_string(folder.join("sweep.json"))
        .map_err(|err| anew(format!("cannot read sweep.json: {err}")))?;
    let document: Value = serde_json::from_str(&document)
        .map_err(|err| anew(format!("sweep.json is not as g2g writes it ({err})")))?;
    if document["plan"] != text {
        return Err(anew("sweep.toml is not the plan that it began with".to_owned()));
    }
    if let Some(plan) = plan
        && read(plan)?.1 != text
    {
        let reason =
            format!("{} is another plan than its sweep.toml: leave it out", plan.display());
        return Err(refuse(reason));
    }
    let provenance = document["provenance"].clone();
    let machine = provenance["simulated_machine"].as_str();
    let own = simulated(own, machine);
    let here = SweepProvenance::collect(machine.map(str::to_owned));
    let here = serde_json::to_value(here).map_err(Failure::start)?;
    let told = |of: &Value| {
        let value = |place| Some(of.pointer(place)?.as_str()?.to_owned());
        SAME.iter().filter_map(|(name, place)| Some(((*name).to_owned(), value(place)?))).collect()
    };
    let changed = differences("the", "unknown", told(&provenance), told(&here));
    if !changed.is_empty() {
        return Err(refuse(format!("{}: begin anew here", changed.join("; "))));
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
        // A file system without locks must not stop the sweep.
        Ok(()) | Err(fs::TryLockError::Error(_)) => Ok(file),
    }
}

impl Folder {
    /// Runs what is missing, and shows the results of all runs; whether all succeeded.
    fn run(&self, options: &Sweep) -> Result<bool, Failure> {
        let runs = self.plan.runs();
        let missing = runs.iter().filter(|run| !self.finished(run).is_dir()).count();
        if !options.quiet {
            let shown = self.folder.display();
            say(&format!("results: {shown}; if it is interrupted, {}", remedy(&self.folder)));
        }
        let progress = Runs::new(missing, options.quiet);
        let csv = self.folder.join("sweep.csv");
        let mut rows = Csv::create(&csv, &self.plan).map_err(Failure::middle)?;
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
            all.push((run, rows.append(&self.plan, &one, &folder).map_err(Failure::middle)?));
            ended.push(one);
        }
        progress.finish();
        let is_simulated = all.iter().flat_map(|(_, rows)| rows).any(|row| row.simulated);
        let cases = sound(&self.plan, &ended, all);
        let findings = findings(&self.plan, &cases);
        let results = self.results(&ended, &findings, is_simulated);
        let json = results.json();
        write_json(&self.folder.join("sweep.json"), &json).map_err(Failure::middle)?;
        write_own(&self.folder);
        let shown = match options.format {
            SweepFormat::Table => show::print_page(&results.page()),
            SweepFormat::Csv => fs::read_to_string(&csv).and_then(|text| show::print(&text)),
            SweepFormat::Json => show::print(&json),
        };
        shown.map_err(|err| Failure::Middle(format!("cannot print the results: {err}")))?;
        if let Some(signal) = interrupt::asked().filter(|_| ended.len() < self.plan.runs().len()) {
            let (name, remedy) = (signal.name(), remedy(&self.folder));
            return Err(Failure::Middle(format!("interrupted by {name}: {remedy}")));
        }
        Ok(ended.iter().all(|ended| ended.failure.is_none()))
    }

    /// Runs one, in a folder that gets its final name when the run succeeds; why it failed, if it
    /// did.
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

    /// The folder of a run that has succeeded.
    fn finished(&self, run: &Run) -> PathBuf {
        self.folder.join("runs").join(format!("{:03}", run.number))
    }

    /// The folder of a run that has not.
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
