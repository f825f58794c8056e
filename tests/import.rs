//! What g2g prints in the form of another program, read back as that program's results are.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Rows, g2g, run};
use g2g::record::{Row, import};

#[test]
fn collectives_in_the_form_of_nccl_tests_read_back_as_they_were_measured() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "nccl --simulate p4d.24xlarge --gpus 0,1 --operation all_reduce,broadcast,alltoall \
         --sizes 64,256K --samples 3 --quiet --format nccl-tests --output {}",
        output.display()
    );
    let printed = run(g2g(), &line);
    assert!(printed.status.success(), "{}", common::text(&printed.stderr));
    let mut rows: Vec<Row> = Vec::new();
    let about = import::read(&printed.stdout, &mut |row| rows.push(row)).unwrap();
    assert_eq!((about.tool, about.left_out), (import::Tool::NcclTests, 0));
    assert_eq!(about.remarks(), [""; 0]);
    let measured = Rows::read(&output);
    assert_eq!(rows.len(), measured.len());
    // In nccl-tests' table a place out of it and one in it share a line.
    for row in &rows {
        let csv = g2g::record::csv_text(std::slice::from_ref(row));
        let read = Rows::parse(&csv);
        let same = (0..measured.len()).filter(|&at| {
            let columns = ["operation", "data_type", "reduction", "root", "in_place", "size_bytes"];
            columns.iter().all(|column| measured.cell(at, column) == read.cell(0, column))
        });
        let same: Vec<usize> = same.collect();
        assert_eq!(same.len(), 1, "{csv}");
        for column in ["communicator_ranks", "operations_per_group", "graph", "simulated", "status"]
        {
            assert_eq!(measured.cell(same[0], column), read.cell(0, column), "{column}");
        }
        for column in ["bandwidth_gb_s", "bandwidth_gb_s_bus"] {
            let ratio = read.number(0, column) / measured.number(same[0], column);
            // Half of the last digit that is printed, of the rate or of the time.
            assert!((ratio - 1.0).abs() < 2e-3, "{column} of {csv}: {ratio}");
        }
    }
}
