//! What is typed, and what it becomes.

use std::time::Duration;

use clap::CommandFactory;
use strum::VariantArray as _;

use super::*;
use crate::{
    plan::{
        Collective, Engine, Gpu, Handle, Issuer, NcclRequest, Operation, Pattern, TransportKind,
        topology::NumaNode,
    },
    run::Options,
    units::Bytes,
};

fn read(line: &str) -> Result<Cli, Answer> {
    Cli::read(line.split_whitespace().map(OsString::from))
}

fn options(line: &str) -> Options {
    match read(line).unwrap().command {
        Command::Measure(measure) => measure.options(),
        other => panic!("{other:?} measures nothing"),
    }
}

fn refused(line: &str) -> String {
    match read(line) {
        Err(Answer::Refused(sentence)) => sentence,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn defaults_are_the_transports_own() {
    let options = options("g2g run");
    let request = options.request(false).unwrap();
    assert_eq!(request.transports, TransportKind::VARIANTS);
    assert_eq!((request.sizes, request.gpus), (None, None));
    assert_eq!((request.ranks, request.slot), (None, None));
    assert_eq!(request.operations, []);
    assert_eq!(
        (request.engines, request.issuers),
        (Engine::OF_GPU.to_vec(), Issuer::VARIANTS.to_vec())
    );
    let effort = options.effort();
    assert_eq!((effort.precision, effort.time_limit), (0.01, Duration::from_secs(1)));
}

#[test]
fn the_effort_has_defaults_that_single_flags_override() {
    let quick = options("g2g p2p --effort quick --time-limit 3s");
    let (effort, request) = (quick.effort(), quick.request(false).unwrap());
    assert_eq!((effort.precision, effort.time_limit), (0.02, Duration::from_secs(3)));
    assert_eq!(effort.latency_time, Duration::from_millis(1));
    assert_eq!(request.engines, [Engine::Ce]);
    let named = options("g2g p2p --effort quick --engine sm").request(false).unwrap();
    assert_eq!(named.engines, [Engine::Sm]);
    assert_eq!(options("g2g p2p --effort thorough").effort().precision, 0.005);
}

#[test]
fn what_was_typed_is_what_is_asked_for() {
    let options = options(
        "g2g run --sizes 4K,1M --pattern pairs,pairs,one-way --ranks 4 --numa 0:1,1:0 \
         --slot-size 64K --precision 0.5 --time-limit 1m --gpus 3,0-1 --issuer write --engine sm \
         --operation chase,copy,chase --handle cumem",
    );
    let request = options.request(false).unwrap();
    assert_eq!(request.sizes, Some(vec![Bytes::kib(4), Bytes::mib(1)]));
    assert_eq!(request.patterns, [Pattern::Pairs, Pattern::OneWay]);
    assert_eq!(request.numa, [(NumaNode(0), NumaNode(1)), (NumaNode(1), NumaNode(0))]);
    assert_eq!(request.slot, Some(Bytes::kib(64)));
    assert_eq!(request.gpus, Some(vec![Gpu(3), Gpu(0), Gpu(1)]));
    assert_eq!((request.issuers, request.engines), (vec![Issuer::Write], vec![Engine::Sm]));
    assert_eq!(request.operations, [Operation::Chase, Operation::Copy]);
    assert_eq!(request.handle, Handle::Cumem);
    let effort = options.effort();
    assert_eq!((effort.precision, effort.time_limit), (0.005, Duration::from_secs(60)));
}

#[test]
fn variables_are_cut_at_their_first_sign() {
    let options = options(
        "g2g nccl --nccl-env NCCL_ALGO=ring --nccl-env NCCL_SOCKET_IFNAME==eth0 \
         --allow-unknown-env",
    );
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let variables = vec![pair("NCCL_ALGO", "ring"), pair("NCCL_SOCKET_IFNAME", "=eth0")];
    let request = options.request(false).unwrap();
    assert_eq!(request.nccl, NcclRequest { variables, allows_unknown: true });
}

#[test]
fn bad_words_are_refused_in_one_sentence_with_the_remedy() {
    for (line, part) in [
        ("g2g run --sizes 0", "a size of 0 moves nothing"),
        ("g2g run --sizes 64T", "`64T` is not a size: write bytes"),
        ("g2g run --sizes 1e6", "`1e6` is not a size"),
        ("g2g run --sizes 8K..4K", "the first size of a range is the smaller one"),
        ("g2g run --sizes 99999999999G", "too large"),
        ("g2g run --ranks 0", "0 is not in 1..=1024"),
        ("g2g run --ranks 1025", "1025 is not in 1..=1024"),
        ("g2g run --precision 0", "a percentage above 0"),
        ("g2g run --precision nan", "a percentage above 0"),
        ("g2g run --time-limit 2", "a time with its unit"),
        ("g2g run --time-limit 0s", "a time with its unit"),
        ("g2g run --time-limit -1s", "a time with its unit"),
        ("g2g run --time-limit 999us", "1ms to 30d"),
        ("g2g run --deadline 50ms", "100ms"),
        ("g2g run --deadline 9223372036854775807s", "1ms to 30d"),
        ("g2g run --samples 0", "0 is not in 1.."),
        ("g2g run --slot-size 100", "a multiple of 64 bytes"),
        ("g2g run --numa 1", "such as 0:1"),
        ("g2g p2p --gpus 0,1,0", "GPU 0 is named twice"),
        ("g2g p2p --gpus zero", "the ordinals of GPUs, such as 0,2 or 0-3"),
        ("g2g p2p --issuer pull", "[possible values: read, write]"),
        ("g2g p2p --engine cpu", "[possible values: ce, sm]"),
        ("g2g nccl --nccl-env NCCL_ALGO", "such as NCCL_P2P_LEVEL=NVL"),
        ("g2g nccl --nccl-env LD_PRELOAD=x", "only names that begin with NCCL_"),
        ("g2g nccl --simulate p4d.24xlarge --nccl-lib x", "cannot be used with"),
        ("g2g run --siz 4K", "--sizes"),
        ("g2g rnu", "'rnu'; --help lists what there is"),
        ("g2g run --quiet --verbose", "cannot be used with"),
        ("g2g run --samples 5 --precision 2%", "cannot be used with"),
        ("g2g run --dry-run --format csv", "cannot be used with"),
    ] {
        let sentence = refused(line);
        assert!(sentence.contains(part), "{line}: {sentence}");
        assert!(!sentence.contains('\n') && !sentence.contains("Usage"), "{sentence}");
    }
}

#[test]
fn every_flag_is_explained_within_80_columns() {
    let mut command = Cli::command();
    let shm = command.find_subcommand_mut("shm").unwrap();
    for flag in shm.get_arguments() {
        assert!(flag.get_help().is_some(), "{}", flag.get_id());
    }
    let Err(Answer::Help(help)) = read("g2g shm --help") else { panic!("no help") };
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
}

/// The commands that measure, each with all of its flags.
fn measuring() -> clap::Command {
    let mut command = heeded::shown(Cli::command(), false);
    command.build();
    command
}

const MEASURING: [&str; 7] = ["run", "local", "p2p", "shm", "nccl", "rdma", "check"];

#[test]
fn a_flag_that_a_command_does_not_heed_is_refused_with_the_command_that_does() {
    let command = measuring();
    let is_of_check = |flag: &clap::Arg| flag.get_help_heading() == Some("Check");
    let mut refusals = 0;
    for name in MEASURING {
        let of_command = command.find_subcommand(name).unwrap();
        for flag in of_command.get_arguments().filter(|flag| flag.is_hide_set()) {
            let long = flag.get_long().unwrap();
            // Any value that the flag takes.
            let values = flag.get_possible_values();
            let value = values.first().map(|value| value.get_name().to_owned());
            let value = value.unwrap_or_else(|| match long {
                "data-type" => "half".to_owned(),
                "reduction" => "max".to_owned(),
                "numa" => "0:1".to_owned(),
                "slot-size" | "minbytes" | "maxbytes" | "stepbytes" => "64K".to_owned(),
                "nccl-env" => "NCCL_ALGO=Ring".to_owned(),
                "split" => "MOD:2".to_owned(),
                "place" => "in-place".to_owned(),
                "budget" | "for" | "time-limit" => "1s".to_owned(),
                "precision" | "fail-below" => "5%".to_owned(),
                "operation" => "copy".to_owned(),
                "stepfactor" => "2".to_owned(),
                _ => "1".to_owned(),
            });
            let line = match flag.get_action().takes_values() {
                true => format!("g2g {name} --{long}={value}"),
                false => format!("g2g {name} --{long}"),
            };
            let sentence = refused(&line);
            assert!(
                sentence.starts_with(&format!("g2g {name} has no --{long}; g2g ")),
                "{sentence}"
            );
            assert!(sentence.ends_with(" has it") || sentence.ends_with(" have it"), "{sentence}");
            let owner = if is_of_check(flag) { "g2g check" } else { "g2g run" };
            assert!(sentence.contains(owner), "{sentence}");
            refusals += 1;
        }
    }
    assert!(refusals > 80, "{refusals}");
    let all = command.find_subcommand("run").unwrap();
    let is_left_out = |flag: &clap::Arg| is_of_check(flag) || flag.get_long() == Some("help");
    assert!(all.get_arguments().all(|flag| !flag.is_hide_set() || is_left_out(flag)));
    // Commands that do not measure name those that have it too.
    let sentence = refused("g2g topo --provider efa");
    assert!(sentence.contains("g2g run and g2g rdma have it"), "{sentence}");
    let sentence = refused("g2g p2p --operation all_reduce");
    assert!(sentence.contains("copy, read-only") && !sentence.contains("ping-pong"), "{sentence}");
}

#[test]
fn short_help_fits_a_screen() {
    let command = measuring();
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    for name in shown.map(clap::Command::get_name).filter(|name| *name != "help") {
        let Err(Answer::Help(help)) = read(&format!("g2g {name} -h")) else { panic!("{name}") };
        let lines = help.lines().count();
        assert!(lines <= 40, "{name} has {lines} lines: {help}");
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
}

/// Lines of nccl-tests' README, of AWS's guide "Get started with EFA and NCCL" and of AWS's examples
/// for distributed training (awsome-distributed-training, micro-benchmarks/nccl-tests), without the
/// launcher.
#[test]
fn lines_of_nccl_tests_and_of_awss_guides_are_taken() {
    for (words, is_launched) in [
        ("all_reduce_perf -b 8 -e 128M -f 2 -g 8", false),
        ("all_reduce_perf -b 8 -e 8G -f 2 -g 1", true),
        ("all_reduce_perf -b 8 -e 1G -f 2 -g 1 -c 1 -n 100", true),
        ("all_reduce_perf -b 8 -e 2G -f 2 -t 1 -g 1 -c 1 -n 100", true),
        ("alltoall_perf -b 8 -e 16G -f 2 -g 1 -c 1 -n 100", true),
        ("all_gather_perf -b 8 -e 2G -f 2 -t 1 -g 1 -c 1 -n 100", true),
        ("reduce_scatter_perf -b 64M -e 16G -f 2 -g 1 -n 20 -w 5 -c 0", true),
        ("sendrecv_perf -b 8 -e 64MB -i 1048576 -g 8 -d half -o max", false),
    ] {
        let line = format!("g2g nccl --operation {words}");
        let request = options(&line).request(is_launched);
        assert!(request.is_ok(), "{line}: {:?}", request.err());
    }
}

#[test]
fn some_flags_may_stand_before_the_command() {
    for line in [
        "g2g --simulate p5.48xlarge -q p2p --sizes 1M",
        "g2g -q --simulate=p5.48xlarge p2p --sizes 1M",
        "g2g p2p --sizes 1M --simulate p5.48xlarge --quiet",
    ] {
        let options = options(line);
        assert_eq!((options.simulate.as_deref(), options.quiet), (Some("p5.48xlarge"), true));
    }
    assert!(refused("g2g --simulate p5.48xlarge report x").contains("have it"));
    assert!(refused("g2g --simulate p5.48xlarge").contains("g2g run, g2g local"));
}

#[test]
fn the_habits_of_nccl_tests_are_understood() {
    let request = |line: &str| options(line).request(false).unwrap();
    let asked = request("g2g nccl --operation all_reduce_perf -b 8 -e 128m -f 2 -g 8 -c 0");
    assert_eq!(asked.operations, [Operation::Collective(Collective::AllReduce)]);
    assert_eq!(asked.gpus, Some((0..8).map(Gpu).collect()));
    assert_eq!(asked.sizes.unwrap().last(), Some(&Bytes::mib(128)));
    assert_eq!(request("g2g nccl -t 2 -g 4").gpus.unwrap().len(), 8);
    assert_eq!(request("g2g nccl --ranks 2 -g 1").gpus.unwrap().len(), 2);
    let launched = |line: &str| options(line).request(true);
    assert_eq!(launched("g2g nccl -g 1").unwrap().gpus, None);
    assert!(launched("g2g nccl -g 8").unwrap_err().contains("start more ranks instead"));
    let names = "allreduce,allgather,reducescatter,all_to_all,sendrecv_perf";
    assert_eq!(request(&format!("g2g nccl --operation {names}")).operations.len(), 5);
}
