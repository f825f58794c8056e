//! Simulated memory that is described and memory that is stored: nobody can tell them apart.

use crate::common::{
    Rows,
    simulation::{EXACT_EVENTS, RESOLUTION_NS, Simulated, four_gpus},
};

/// Columns and flags that depend on how many samples fit into real time.
const BY_CHANCE: [&str; 6] = [
    "bandwidth_variation",
    "latency_samples",
    "machine_seconds",
    "operations_per_sample",
    "path_reason",
    "wire_bytes_per_payload_byte",
];
const FLAGS_BY_CHANCE: [&str; 2] = ["not_converged", "few_bandwidth_samples"];

/// Where in time a sample begins moves its bounds by what events can tell apart, at most: by one
/// bucket of a histogram, and by one step of the events' clock.
const TOLERANCE: f64 = 0.02;

/// Runs g2g on a machine of four GPUs with `faults`, described and stored.
fn both(line: &str, faults: &str) -> [Rows; 2] {
    [true, false].map(|symbolic| {
        let machine = four_gpus("", &format!("{faults}{EXACT_EVENTS}"));
        let machine =
            machine.replace("schema = 1\n", &format!("schema = 1\nsymbolic_memory = {symbolic}\n"));
        let line = format!("{line} --seed 20261123 --samples 2 --time-limit 2ms");
        let run = Simulated::run(&machine, &line);
        assert!((0..=1).contains(&run.code), "{line}: {}{}", run.stdout, run.stderr);
        run.rows_whatever_happened()
    })
}

fn is_the_same(column: &str, described: &str, stored: &str) -> bool {
    let lasting = |flags: &str| -> Vec<String> {
        let flags = flags.split(' ').filter(|flag| !FLAGS_BY_CHANCE.contains(flag));
        flags.map(str::to_owned).collect()
    };
    if column == "flags" {
        return lasting(described) == lasting(stored);
    }
    let times = ["bandwidth", "latency", "empty", "expected", "slowest"];
    if !times.iter().any(|prefix| column.starts_with(prefix)) {
        return described == stored;
    }
    match (described.parse::<f64>(), stored.parse::<f64>()) {
        (Ok(described), Ok(stored)) => {
            let step = if column.contains("_ns") { RESOLUTION_NS } else { 0.0 };
            (described - stored).abs() <= f64::max(TOLERANCE * stored.abs(), step)
        }
        _ => described == stored,
    }
}

/// Fails unless a run leaves the same rows either way; their states.
fn assert_same(line: &str, faults: &str) -> Vec<String> {
    let [described, stored] = both(line, faults);
    assert!(described.len() > 0, "{line}");
    assert_eq!(described.len(), stored.len(), "{line}");
    for row in 0..described.len() {
        for column in described.columns().filter(|column| !BY_CHANCE.contains(column)) {
            let [left, right] = [&described, &stored].map(|rows| rows.cell(row, column));
            assert!(
                is_the_same(column, left, right),
                "{line}{faults}: row {row}: {column} is {left}, stored {right}"
            );
        }
    }
    (0..described.len()).map(|row| described.cell(row, "status").to_owned()).collect()
}

fn count(states: &[String], state: &str) -> usize {
    states.iter().filter(|found| *found == state).count()
}

/// A byte of copies from GPU 0 to GPU 1.
fn flip(offset: u64, rest: &str) -> String {
    format!("\n[[fault.flip]]\nsource = 0\ntarget = 1\noffset = {offset}\n{rest}\n")
}

#[test]
fn healthy_machines_have_the_same_rows() {
    for line in [
        "p2p --gpus 0-2 --operation copy,read-only,write-only,chase --sizes 8,1M,1000003",
        "local --gpus 0,1 --sizes 64K",
        "shm --gpus 0,1 --sizes 1M --pattern one-way",
    ] {
        let states = assert_same(line, "");
        let (ok, skipped) = (count(&states, "ok"), count(&states, "skipped"));
        assert!(ok >= 4 && ok + skipped == states.len(), "{line}: {states:?}");
    }
}

#[test]
fn flipped_bytes_have_the_same_rows() {
    let line = "p2p --gpus 0-2 --operation copy,write-only,read-only --sizes 100003";
    for offset in [0, 511, 512, 50_001, 100_002] {
        let states = assert_same(line, &flip(offset, "always = true"));
        assert!(count(&states, "corrupt") >= 4, "{offset}: {states:?}");
        assert!(count(&states, "ok") >= 8, "{offset}: {states:?}");
    }
    let (two, copy) = (flip(70_000, "always = true"), "p2p --gpus 0,1 --operation copy --sizes 1M");
    let states = assert_same(copy, &(two + &flip(900_000, "always = true")));
    assert_eq!(count(&states, "corrupt"), 4, "{states:?}");
    // Of one operation, which later ones repair.
    assert_same(copy, &flip(4242, "after = 10"));
}

#[test]
fn processes_have_the_same_rows() {
    for handle in ["ipc", "cumem"] {
        let line = format!("p2p --gpus 0,1 --ranks 2 --handle {handle} --sizes 64K,1000003");
        let states = assert_same(&line, "");
        assert_eq!(count(&states, "ok"), states.len(), "{line}: {states:?}");
        let states = assert_same(&line, &flip(4242, "always = true"));
        assert!(count(&states, "corrupt") >= 4, "{line}: {states:?}");
    }
}

const COLLECTIVES: &str = "nccl --place out-of-place,in-place --operation \
                           all_reduce,all_gather,reduce_scatter,broadcast,reduce,\
                           alltoall,gather,scatter,sendrecv --sizes 64K";
const TYPES: &str = "nccl --operation all_reduce,reduce_scatter --sizes 4K -n 2 \
                     --place out-of-place -d int8,uint64,half,f8e4m3 -o sum,avg,mulsum";

fn assert_all_ok(line: &str) {
    let states = assert_same(line, "");
    assert_eq!(count(&states, "ok"), states.len(), "{line}: {states:?}");
}

/// With a rank that does not do its part right.
fn assert_corrupt(line: &str, rest: &str) {
    let wrong = format!("\n[[fault.rank]]\nrank = 2\nwhat = \"wrong\"\n{rest}\nalways = true\n");
    let states = assert_same(line, &wrong);
    assert!(count(&states, "corrupt") > 5, "{line}: {states:?}");
}

#[test]
fn collectives_have_the_same_rows() {
    assert_all_ok(COLLECTIVES);
    assert_all_ok(&format!("{COLLECTIVES} --buffer nccl"));
}

#[test]
fn collectives_of_all_types_have_the_same_rows() {
    assert_all_ok(TYPES);
}

#[test]
fn collectives_between_processes_have_the_same_rows() {
    assert_all_ok(&format!("{COLLECTIVES} --ranks 2"));
}

#[test]
fn wrong_collectives_have_the_same_rows() {
    assert_corrupt(COLLECTIVES, "element = 1000");
    assert_corrupt(&format!("{COLLECTIVES} --ranks 2"), "element = 0");
}

#[test]
fn wrong_collectives_of_all_types_have_the_same_rows() {
    assert_corrupt(TYPES, "element = 77\nname = \"ncclAllReduce\"\nafter = 4");
}
