//! The program from outside, and what holds the repository to its own words: one test program, so
//! that it is linked once and its waits overlap.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../common/mod.rs"]
mod common;

mod adding;
mod answer;
mod architecture;
mod attribution;
mod burn_in;
mod catalogue;
mod check;
mod check_lost;
mod check_scripts;
mod clusters;
mod collectives;
mod collectives_machines;
mod collectives_modes;
mod compare;
mod compare_tools;
mod counters;
mod doctor;
mod effort;
mod expected;
mod explain;
mod faults;
mod formats;
mod fuzz;
mod hardware;
mod hosts;
mod known_answers;
mod matrix;
mod mistakes;
mod mpi;
mod multicast;
mod nccl;
mod nccl_versions;
mod nvlink_domains;
mod older_drivers;
mod package;
mod program;
mod prose;
mod python;
mod ranks;
mod rdma;
mod rdma_corrupt;
mod rdma_faults;
mod rdma_mpi;
mod rdma_nics;
mod rdma_patterns;
mod rdma_scale;
mod rdma_simulated;
mod real_drivers;
mod report;
mod resume;
mod scripts;
mod security;
mod signals;
mod step;
mod strict;
mod sweep;
mod symbolic;
mod tcp_ranks;
mod terminal;
mod topo;
mod truth;

use std::process::Command;

#[test]
fn each_line_of_the_table_of_what_can_go_wrong_names_tests() {
    let list = Command::new(std::env::current_exe().unwrap()).arg("--list").output().unwrap();
    let list = common::text(&list.stdout);
    let tests: Vec<&str> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let text = include_str!("../../docs/reliability.md");
    let (_, table) = text.split_once("\n## What can go wrong\n").unwrap();
    let mut count = 0;
    for line in table.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, _, names, _] = cells[..] else { panic!("{line}") };
        for name in names.split(", ").filter(|name| !name.is_empty()) {
            let name = name.trim_matches('`');
            assert!(tests.iter().any(|test| test.contains(name)), "no test {name}: {line}");
            count += 1;
        }
    }
    assert!(count > 25, "{count}");
}
