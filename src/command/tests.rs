//! What is typed, and what it becomes.

use std::time::Duration;

use clap::CommandFactory;
use strum::VariantArray as _;

use super::*;
use crate::{
    plan::{
        Engine, Gpu, Handle, Issuer, NcclRequest, Operation, Pattern, TransportKind,
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
    let request = options.request().unwrap();
    assert_eq!(request.transports, TransportKind::VARIANTS);
    assert_eq!((request.sizes, request.gpus), (None, None));
    assert_eq!((request.ranks, request.slot), (None, None));
    assert_eq!(request.operations, []);
    assert_eq!(
        (request.engines, request.issuers),
        (Engine::OF_GPU.to_vec(), Issuer::VARIANTS.to_vec())
    );
    let effort = options.effort();
    assert_eq!((effort.precision, effort.time_limit), (0.01, Duration::from_secs(2)));
}

#[test]
fn the_effort_has_defaults_that_single_flags_override() {
    let quick = options("g2g p2p --effort quick --time-limit 1s");
    let (effort, request) = (quick.effort(), quick.request().unwrap());
    assert_eq!((effort.precision, effort.time_limit), (0.02, Duration::from_secs(1)));
    assert_eq!(effort.latency_time, Duration::from_millis(2));
    assert_eq!(request.engines, [Engine::Ce]);
    let named = options("g2g p2p --effort quick --engine sm").request().unwrap();
    assert_eq!(named.engines, [Engine::Sm]);
    assert_eq!(options("g2g p2p --effort thorough").effort().precision, 0.005);
}

#[test]
fn what_was_typed_is_what_is_asked_for() {
    let options = options(
        "g2g shm --sizes 4K,1M --pattern pairs,pairs,one-way --ranks 4 --numa 0:1,1:0 \
         --slot-size 64K --precision 0.5 --time-limit 1m --gpus 3,0-1 --issuer write --engine sm \
         --operation chase,copy,chase --handle cumem",
    );
    let request = options.request().unwrap();
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
    let request = options.request().unwrap();
    assert_eq!(request.nccl, NcclRequest { variables, allows_unknown: true });
}

#[test]
fn bad_words_are_refused_in_one_sentence_with_the_remedy() {
    for (line, part) in [
        ("g2g run --sizes 0", "a size of 0 moves nothing"),
        ("g2g run --sizes 64MB", "`64MB` is not a size: write bytes"),
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
