//! The command line: the commands, from parsing to the exit code.
//!
//! A command is a type: its fields are its flags, and it runs itself.

mod catalogue;
mod compare;
mod doctor;
mod examples;
mod explain;
mod report;
mod step;
mod sweep;
mod topo;

use std::{env, ffi::OsString, io, process::ExitCode};

use clap::{
    CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    interrupt,
    run::{self, Ending, Failure, Join, Measure, Open, Ranks, Task, heeded},
    show,
    stderr::say,
};

/// Reads the command line, runs the command and returns the exit code.
pub fn main(open: Open) -> ExitCode {
    let mut ranks = Ranks::of_process();
    let is_first = ranks.is_first();
    let result = match Cli::read(env::args_os()) {
        Ok(cli) => {
            if is_first && matches!(cli.command, Command::Measure(_)) {
                let words = env::args_os().filter_map(|word| word.into_string().ok());
                note_sizes(&words.collect::<Vec<String>>());
            }
            cli.command.run(open, &mut ranks)
        }
        Err(Answer::Help(text)) if is_first => print(&text).map(Ending::of),
        Err(Answer::Usage(text)) if is_first => {
            say(text.trim_end());
            return ExitCode::from(2);
        }
        Err(Answer::Refused(sentence)) => Err(Failure::Words(sentence)),
        Err(Answer::Help(_) | Answer::Usage(_)) => Ok(Ending::Well),
    };
    let result = match result {
        // All ranks of a launcher read the same command line; only the first reports errors in it.
        Err(Failure::Words(_)) if !is_first => Ok(Ending::Well),
        result => result,
    };
    if let Err(failure) = &result {
        say(&format!("error: {failure}"));
    }
    if let Err(err) = ranks.leave(matches!(result, Err(Failure::Middle(_)))) {
        say(&format!("error: {err}"));
        return ExitCode::from(1);
    }
    if let Some(signal) = interrupt::asked() {
        return ExitCode::from(signal.exit_code());
    }
    match result {
        Ok(Ending::Well) => ExitCode::SUCCESS,
        Ok(Ending::Badly) | Err(Failure::Middle(_)) => ExitCode::from(1),
        Ok(Ending::Undecided) => ExitCode::from(3),
        Err(Failure::Words(_) | Failure::Start(_)) => ExitCode::from(2),
    }
}

/// Says what sizes mean that some read as powers of 1000.
fn note_sizes(words: &[String]) {
    let is_doubtful = |word: &str| {
        let unit = word.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let is_unit = ["kb", "mb", "gb"].iter().any(|name| unit.eq_ignore_ascii_case(name));
        is_unit && unit.len() < word.len()
    };
    let mut sizes = words.iter().flat_map(|word| word.split([',', '=', '.']));
    let is_quiet = words.iter().any(|word| word == "-q" || word == "--quiet");
    if let Some(size) = sizes.find(|word| is_doubtful(word)).filter(|_| !is_quiet) {
        let unit = size.trim_start_matches(|letter: char| letter.is_ascii_digit());
        say(&format!("note: {size}: sizes are powers of 1024, so {unit} is {}iB", &unit[..1]));
    }
}

/// Prints the answer of a command that measures nothing.
fn print(text: &str) -> Result<bool, Failure> {
    is_printed(show::print(text))
}

/// The same for a person.
fn print_page(page: &show::Page) -> Result<bool, Failure> {
    is_printed(show::print_page(page))
}

fn is_printed(printed: io::Result<()>) -> Result<bool, Failure> {
    printed.map(|()| true).map_err(|err| Failure::Start(format!("cannot print the answer: {err}")))
}

impl Command {
    fn run(self, open: Open, ranks: &mut Ranks) -> Result<Ending, Failure> {
        let is_well = match self {
            Self::Measure(measure) => return measure.run(open, ranks),
            Self::Doctor(doctor) => doctor.run(ranks),
            Self::Rank(join) => match join.run(ranks)? {
                Some(Task::Measure(here)) => run::join(open, &here, ranks),
                Some(Task::Examine(catalogue)) => doctor::join(catalogue.as_deref(), ranks),
                // Rank 0 has ended and has reported why.
                None => Ok(true),
            },
            // Under a launcher only the first rank answers.
            _ if !ranks.is_first() => Ok(true),
            Self::Topo(topo) => topo.run(),
            Self::Sweep(sweep) => sweep.run(ranks.launcher.as_ref()),
            Self::Report(report) => report.run(),
            Self::Compare(compare) => compare.run(),
            Self::Step(step) => step.run(),
            Self::Explain(explain) => explain.run(),
            Self::Catalogue(catalogue) => catalogue.run(),
        };
        is_well.map(Ending::of)
    }
}

/// Measures how fast GPUs, and the host memory between them, reach each other.
///
/// A number is recorded only after every byte of every target was compared with what the timed
/// transfers must have left there. Bandwidth is in GB/s, 10^9 bytes per second; sizes are powers of
/// 1024; latency is in nanoseconds. A run leaves a folder with run.csv, run.json and latency.hlog.
/// Standard output carries the results, standard error everything else.
///
/// Exit code: 0 all well, 1 a case was corrupt or failed, 2 cannot start or bad arguments, 3 a check
/// cannot tell, 130 and 143 ended by SIGINT and SIGTERM.
#[derive(Debug, Parser)]
#[command(name = "g2g", version, term_width = 80)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Those that measure.
    #[command(flatten)]
    Measure(Box<Measure>),
    /// Show GPUs, network interfaces, their links, and which GPUs reach each other; measures
    /// nothing
    Topo(topo::Topo),
    /// Check this machine for problems before measuring; changes nothing
    Doctor(doctor::Doctor),
    /// Run a plan of many settings, each in its own process, and report significant differences
    Sweep(sweep::Sweep),
    /// Write the results of runs as one self-contained HTML page
    Report(report::Report),
    /// Compare the results of two runs, or the parts of one, and report significant differences
    Compare(compare::Compare),
    /// List what the GPUs of a training step tell each other, and predict from runs how long that
    /// takes; measures nothing
    Step(step::Step),
    /// Read an NCCL log and explain which path the data took, why, and what to change
    Explain(explain::Explain),
    /// Show what is known about EC2 instance types and GPUs, with sources; measures nothing
    Catalogue(catalogue::Catalogue),
    /// A rank that g2g starts by itself.
    #[command(name = "internal-rank", hide = true)]
    Rank(Join),
}

/// The formats of an answer that is not a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TextOrJson {
    /// Tables for a person
    Table,
    /// All that is known, as JSON
    Json,
}

/// Why a command line runs no command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The user asked for this help text.
    Help(String),
    /// The user gave no command; this text lists the commands.
    Usage(String),
    /// The arguments are wrong; this sentence says why.
    Refused(String),
}

impl Cli {
    /// The commands, each with examples and the flags that it heeds; if `is_short` with the help of
    /// `-h`.
    pub fn shown(is_short: bool) -> clap::Command {
        examples::shown(heeded::shown(Self::command(), is_short))
    }

    /// Parses a command line, the program's name first.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, Answer> {
        let words = heeded::in_order(words.into_iter().collect());
        let is_short = words.iter().any(|word| word == "-h");
        let mut command = Self::shown(is_short);
        let matches = command.try_get_matches_from_mut(words);
        let matches = matches.map_err(|err| answer(&err, &command))?;
        match heeded::refusal(&command, &matches) {
            Some(sentence) => Err(Answer::Refused(sentence)),
            None => Self::from_arg_matches(&matches).map_err(|err| answer(&err, &command)),
        }
    }
}

fn answer(err: &clap::Error, command: &clap::Command) -> Answer {
    let sentence = || sentence(&err.to_string());
    match err.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Answer::Help(err.to_string()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Answer::Usage(err.to_string()),
        ErrorKind::UnknownArgument => {
            let word = match err.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(word)) => word,
                _ => "",
            };
            let is_value = !word.starts_with('-') || word.parse::<f64>().is_ok();
            let flag = word.trim_start_matches('-').split('=').next().unwrap_or_default();
            let advice = match is_value {
                true => {
                    "; a value follows its flag, as in --sizes 1M or --fail-below=90%".to_owned()
                }
                false => heeded::owners(command, flag),
            };
            Answer::Refused(format!("{}{advice}; --help lists what there is", sentence()))
        }
        ErrorKind::InvalidSubcommand => {
            Answer::Refused(format!("{}; --help lists what there is", sentence()))
        }
        _ => Answer::Refused(sentence()),
    }
}

/// The reason and the tips of clap's message, without its usage lines, on one line.
fn sentence(message: &str) -> String {
    let told: Vec<&str> = message
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty())
        .collect();
    told.join("; ").trim_start_matches("error: ").replace(":; ", ": ")
}

#[cfg(test)]
mod tests;
