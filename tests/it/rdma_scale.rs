//! As many ranks as some clusters have GPUs, on one host.

use std::{fs, path::Path};

use crate::common::{QUICK, Rows, mpi::mpich, verified, verified_rdma};

const LINE: &str = "--provider shm --operation write --pattern neighbours --sizes 8";

fn assert_all_have_measured(rows: &Rows) {
    assert_eq!(rows.len(), 1);
    assert_eq!(rows.cell(0, "flows"), "64");
    // Of 64 ranks with flows of their own one is the slowest.
    assert!(rows.number(0, "slowest_rank") < 64.0);
}

#[test]
fn sixty_four_ranks_of_its_own_measure_and_verify() {
    assert_all_have_measured(&verified_rdma(&format!("--ranks 64 {LINE}")));
}

#[test]
fn sixty_four_ranks_of_a_launcher_measure_and_verify() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!("rdma {LINE} {QUICK} --no-report --output {}", output.display());
    let (result, said) = mpich()[0].outcome(64, &line);
    assert_all_have_measured(&verified(&result, &output, &said));
    assert_eq!(ranks_of(&output), 64, "{said}");
}

/// The ranks that have taken part, as run.json has it.
fn ranks_of(output: &Path) -> u64 {
    let json = fs::read_to_string(output.join("run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    json["provenance"]["ranks"].as_u64().unwrap()
}
