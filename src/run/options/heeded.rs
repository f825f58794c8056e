//! Which of the commands that measure heed a flag. The others do not show it, and refuse it.

use std::ffi::OsString;

use clap::{Arg, ArgMatches, Command, parser::ValueSource};
use strum::VariantArray as _;

use crate::plan::{
    TransportKind::{self, Local, Nccl, P2p, Rdma, Shm},
    operation,
};

/// Flags that few need: `-h` leaves them out, --help has them.
const RARE: [&str; 16] = [
    "allows_unknown",
    "buffers",
    "catalogue",
    "check",
    "deadline",
    "fabric_lib",
    "is_blocking",
    "mpi_lib",
    "nccl_lib",
    "no_report",
    "nthreads",
    "operations_per_group",
    "resume_changed",
    "seed",
    "split",
    "stepbytes",
];

/// The transports that heed a flag; `None`: all do, and what does not measure by a transport.
fn heeded_by(arg: &Arg) -> Option<&'static [TransportKind]> {
    match (arg.get_help_heading(), arg.get_id().as_str()) {
        (Some("NCCL"), _) => Some(&[Nccl]),
        (Some("RDMA"), _) => Some(&[Rdma]),
        (_, "issuers" | "pairs" | "handle") => Some(&[P2p]),
        (_, "numa") => Some(&[Shm]),
        (_, "slot") => Some(&[Shm, Rdma]),
        (_, "engines") => Some(&[Local, P2p, Shm]),
        (_, "operations") => Some(&[Local, P2p, Nccl, Rdma]),
        _ => None,
    }
}

/// The transport of a command, if it measures one and no other.
fn transport(command: &str) -> Option<TransportKind> {
    TransportKind::VARIANTS.iter().copied().find(|kind| command == kind.to_string())
}

/// The flags of a check beside its own. What it measures, and for how long, is its own choice.
const OF_CHECK: [&str; 16] = [
    "catalogue",
    "deadline",
    "dry_run",
    "format",
    "gpus",
    "mpi_lib",
    "nccl_lib",
    "no_report",
    "output",
    "quiet",
    "resume",
    "resume_changed",
    "seed",
    "simulate",
    "verbose",
    "help",
];

fn heeds(command: &str, arg: &Arg) -> bool {
    let is_of_check = arg.get_help_heading() == Some("Check");
    if command == "check" {
        return is_of_check || OF_CHECK.contains(&arg.get_id().as_str());
    }
    if is_of_check {
        return false;
    }
    transport(command)
        .zip(heeded_by(arg))
        .is_none_or(|(transport, heeded_by)| heeded_by.contains(&transport))
}

/// The words with the flags that stand before the command behind its name, where clap wants them.
pub(crate) fn in_order(mut words: Vec<OsString>) -> Vec<OsString> {
    let mut next = 1;
    while let Some(word) = words.get(next).and_then(|word| word.to_str()) {
        next += match word {
            "--simulate" => 2,
            "-q" | "--quiet" | "-v" | "--verbose" => 1,
            word if word.starts_with("--simulate=") => 1,
            _ => break,
        };
    }
    if next < words.len() {
        words[1..=next].rotate_right(1);
    }
    words
}

/// `command` with its subcommands, each of which shows only the flags that it heeds, with the values
/// that it has. If `is_short` the help is that of `-h`, with a line for each flag: what few need is
/// left out, and so are the values and defaults that its sentence does not have.
pub(crate) fn shown(command: Command, is_short: bool) -> Command {
    command.mut_subcommands(|command| {
        let name = command.get_name().to_owned();
        let transport = transport(&name);
        let is_left_out = |arg: &Arg| {
            let is_of_one = matches!(arg.get_help_heading(), Some("NCCL" | "RDMA"));
            (is_of_one && transport.is_none()) || RARE.contains(&arg.get_id().as_str())
        };
        command.mut_args(|arg| {
            let is_hidden = !heeds(&name, &arg) || is_short && is_left_out(&arg);
            let has_own_values = heeds(&name, &arg) && arg.get_id() == "operations";
            let arg = if has_own_values { arg.value_parser(operation(transport)) } else { arg };
            let is_plain = is_short && arg.get_action().takes_values();
            arg.hide(is_hidden).hide_possible_values(is_plain).hide_default_value(is_plain)
        })
    })
}

/// Why `matches` of `command` are refused: a flag of another command was given.
pub(crate) fn refusal(command: &Command, matches: &ArgMatches) -> Option<String> {
    let (name, matches) = matches.subcommand()?;
    let of_command = command.find_subcommand(name)?;
    let is_given =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let arg = of_command.get_arguments().filter(|arg| !heeds(name, arg)).find(is_given)?;
    let flag = arg.get_long().unwrap_or_default();
    Some(format!("g2g {name} has no --{flag}{}", owners(command, flag)))
}

/// The commands that have a flag, for a sentence: `; g2g rdma has it`.
pub(crate) fn owners(command: &Command, flag: &str) -> String {
    let has = |command: &&Command| {
        let heeded = |arg: &Arg| heeds(command.get_name(), arg);
        let is_it =
            |arg: &Arg| arg.get_long_and_visible_aliases().is_some_and(|all| all.contains(&flag));
        command.get_arguments().any(|arg| is_it(arg) && heeded(arg))
    };
    let owners: Vec<String> = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .filter(has)
        .map(|command| format!("g2g {}", command.get_name()))
        .collect();
    match &owners[..] {
        [] => String::new(),
        [owner] => format!("; {owner} has it"),
        [most @ .., last] => format!("; {} and {last} have it", most.join(", ")),
    }
}
