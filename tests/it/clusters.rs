//! Simulated machines of several hosts: for all that asks, ranks are on different ones.

use std::{collections::BTreeSet, fs};

use crate::{
    common::{
        Rows, g2g, lab::Lab, mpi::open_mpi, simulation::Simulated, simulation::assert_near, text,
    },
    scripts::{finish, script},
};

/// Short measurements, which are exact in simulated time, however long they last.
const QUICK: &str = "--samples 3 --time-limit 2ms --deadline 300s --quiet";

/// Two hosts with two H100 and eight interfaces of 100 Gbit/s for these.
const TWO: &str = "schema = 1\nfrom = 'p5.48xlarge'\nhosts = 2\ngpu_count = 2\n";

fn hosts(rows: &Rows, row: usize) -> [&str; 2] {
    ["source_host", "target_host"].map(|name| rows.cell(row, name))
}

#[test]
fn gpus_reach_those_of_their_own_host_and_memory_is_shared_within_it() {
    for transport in ["p2p", "shm"] {
        let run = Simulated::run_ranks(4, TWO, &format!("{transport} --sizes 1M {QUICK}"));
        let rows = run.rows();
        let mut found = BTreeSet::new();
        for row in 0..rows.len() {
            let [source, target] = hosts(&rows, row);
            assert_eq!(source, target, "{}", run.stdout);
            assert_ne!(rows.cell(row, "status"), "failed", "{}", run.stdout);
            if rows.cell(row, "status") == "ok" {
                found.insert(source.to_owned());
            }
        }
        assert_eq!(found.len(), 2, "{transport}: {}", run.stdout);
    }
}

/// How long collectives of four ranks on two hosts last, in ns: the ring's and the tree's formulas
/// of docs/simulation.md, without NVLink on all hops. `net` is what leaves a host.
fn collective_ns(operation: &str, bytes: f64, net: f64) -> f64 {
    // Within a host NVLink, between hosts the network; of LL and of Simple.
    let steps = |rounds: f64, [inside, between]: [f64; 2]| rounds * (2.0 * inside + between);
    let (rounds, factor) = match operation {
        "all_reduce" => (2.0, 1.5),
        "all_gather" => (1.0, 0.75),
        _ => (1.0, 1.0),
    };
    let ll = 6600.0 + steps(rounds, [600.0, 2700.0]) + bytes * factor / 141.0_f64.min(net / 2.0);
    let simple = 8400.0 + steps(rounds, [3400.0, 14000.0]) + bytes * factor / net;
    let mut all = vec![ll, simple];
    if operation == "all_reduce" {
        all.push(6800.0 + 2.0 * (600.0 + 5000.0) + 2.0 * bytes / 141.0_f64.min(0.92 * net / 3.8));
        all.push(8400.0 + 2.0 * (4000.0 + 14000.0) + 2.0 * bytes / (0.92 * net));
    }
    all.into_iter().fold(f64::INFINITY, f64::min)
}

#[test]
fn collectives_between_hosts_are_as_fast_as_the_interfaces_of_their_gpus() {
    // The second time half of the interfaces of a GPU of the second host are slow.
    let slow = format!("{TWO}[[nic]]\nindices = [34, 35]\nrate_gbps = 25\n");
    for (machine, net) in [(TWO, 100.0), (&slow, 50.0 + 31.25)] {
        let line = format!(
            "nccl --operation all_reduce,all_gather,broadcast --place out-of-place --sizes 1K,64M \
             {QUICK}"
        );
        let run = Simulated::run_ranks(4, machine, &line);
        let rows = run.rows();
        assert_eq!(rows.len(), 6, "{}", run.stdout);
        for row in 0..rows.len() {
            let (operation, bytes) = (rows.cell(row, "operation"), rows.number(row, "size_bytes"));
            let what = format!("{operation} of {bytes}, {net} GB/s");
            assert_eq!(rows.cell(row, "status"), "ok", "{what}");
            let ns = collective_ns(operation, bytes, net);
            if bytes > 1e6 {
                assert_near(rows.number(row, "latency_ns_p50"), ns, 0.005, &what);
            } else {
                // Events cost 1 us, and tell up to 1 us too much or too little.
                let off = (rows.number(row, "latency_ns_p50") - ns).abs();
                assert!(off < 3000.0, "{what}: {off} ns off {ns}");
            }
            assert!(rows.cell(row, "path").contains("NET/Libfabric"), "{what}");
        }
    }
}

#[test]
fn the_doctor_finds_nothing_wrong_with_hosts_that_are_alike() {
    for name in ["2xp4d.24xlarge", "3xp5.48xlarge", "2xp6-b200.48xlarge", "2xg6e.48xlarge"] {
        let [mpi, _] = open_mpi();
        let ranks = name[..1].parse().unwrap();
        let (output, said) = mpi.outcome(ranks, &format!("doctor --simulate {name}"));
        assert_eq!(output.status.code(), Some(0), "{said}");
        for number in 1..=ranks {
            assert!(said.contains(&format!("ip-10-0-0-{number}, {}", &name[2..])), "{said}");
        }
        assert!(said.contains("0 problems"), "{said}");
    }
}

#[test]
fn the_doctor_compares_the_nvlink_domains_of_hosts() {
    let channel = |number: u32, what: &str, process: u32| {
        format!(
            "[[host.file]]\npath = '/dev/nvidia-caps-imex-channels/channel{number}'\n{what}\n\
             process = {process}\n"
        )
    };
    let other = channel(0, "absent = true", 1) + &channel(1, "text = ''", 1);
    for (more, expected) in [
        (
            String::new(),
            "ip-10-0-0-1, ip-10-0-0-2 are in one NVLink domain and have IMEX channel 0",
        ),
        (
            "[[gpu]]\nordinals = [4, 5, 6, 7]\nclique = 2\n".to_owned(),
            "the hosts are in 2 parts of the NVLink fabric",
        ),
        (other, "are in one NVLink domain and have no IMEX channel in common"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let machine = folder.path().join("two.toml");
        let file = format!("schema = 1\nfrom = 'p6e-gb200.36xlarge'\nhosts = 2\n{more}");
        fs::write(&machine, file).unwrap();
        let [mpi, _] = open_mpi();
        let line = format!("doctor --json --simulate {}", machine.display());
        let (output, said) = mpi.outcome(2, &line);
        let json: serde_json::Value = serde_json::from_str(&text(&output.stdout)).expect(&said);
        let findings = json["findings"].as_array().unwrap();
        let seen = findings.iter().filter(|finding| finding["check"] == "nvlink-domain");
        let seen: Vec<&str> = seen.map(|finding| finding["seen"].as_str().unwrap()).collect();
        assert!(seen.len() == 1 && seen[0].contains(expected), "{seen:?}");
    }
}

#[test]
fn the_doctor_names_the_fabric_that_will_be_used() {
    for (name, way) in [
        ("p5.48xlarge", "writes and reads go over its fabric efa-direct, messages over efa"),
        ("p4d.24xlarge", "all goes over its fabric efa"),
    ] {
        let output = g2g().args(["doctor", "--verbose", "--simulate", name]).output().unwrap();
        let said = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(way), "{said}");
    }
}

#[test]
fn run_cluster_rehearses_a_run_between_simulated_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("two.toml");
    fs::write(&machine, TWO).unwrap();
    // The second time a rank for each of two GPUs.
    for (ranks, flows) in [(":1", 2), ("", 8)] {
        let output = folder.path().join(format!("run{}", ranks.len()));
        let line = format!(
            "--simulate {}{ranks} rdma --memory gpu --operation write --pattern one-way --sizes 64K \
             {QUICK} --no-report --output {}",
            machine.display(),
            output.display()
        );
        let (result, said) = finish(&mut script("run-cluster", &line));
        assert_eq!(result.status.code(), Some(0), "{said}");
        let rows = Rows::read(&output);
        assert_eq!(rows.len(), flows, "{said}");
        for row in 0..rows.len() {
            assert_eq!(rows.cell(row, "status"), "ok", "{said}");
            let [source, target] = hosts(&rows, row);
            assert_ne!(source, target, "{said}");
        }
    }
    let (result, said) = finish(&mut script("run-cluster", "--simulate 2xp5.48xlarg"));
    assert_ne!(result.status.code(), Some(0), "{said}");
    assert!(said.contains("the nearest name is `p5.48xlarge`"), "{said}");
}

#[test]
fn a_number_of_hosts_that_cannot_be_is_refused_in_one_sentence() {
    for (line, sentence) in [
        (
            "rdma --simulate 2xp5.48xlarge",
            "2xp5.48xlarge has 2 hosts, and each rank is on one of them: start 2 ranks or more by \
             a launcher (mpirun -n 2 g2g ...)",
        ),
        (
            "topo --simulate 99xp5.48xlarge",
            "99 hosts of p5.48xlarge cannot be simulated: give 1 to 9",
        ),
        ("p2p --simulate 0xp5.48xlarge", "0 hosts of p5.48xlarge cannot be simulated: give 1 to 9"),
        ("p2p --simulate 2xp5", "no machine is called `p5`"),
    ] {
        let output = g2g().args(line.split_whitespace()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.starts_with(&format!("error: {sentence}")), "{line}: {said}");
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
    }
}

#[test]
fn simulated_hosts_are_on_one_real_host() {
    let Some(lab) = Lab::up(2, "") else { return };
    let (output, said) = lab.start(1, "doctor --simulate 2xp5.48xlarge").wait();
    assert_ne!(output.status.code(), Some(0), "{said}");
    let sentence = "several simulated hosts are simulated on one: start all ranks there";
    assert!(said.contains(sentence), "{said}");
}
