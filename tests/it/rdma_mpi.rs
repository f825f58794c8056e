//! RDMA between ranks of real MPI launchers.

use crate::common::{QUICK, mpi::every_launcher, verified};

#[test]
fn every_launchers_ranks_verify_every_operation_from_8_bytes_to_4_mib() {
    for mpi in every_launcher() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let (result, said) = mpi
            .g2g(
                2,
                &format!(
                    "rdma --memory host --provider tcp,shm --pattern one-way --sizes 8,4M \
                     --operation write,read,send {QUICK} --no-report --output {}",
                    output.display()
                ),
            )
            .wait();
        let rows = verified(&result, &output, &said);
        assert_eq!(rows.len(), 2 * 3 * 2, "{said}");
        for row in 0..rows.len() {
            let provider = if row < 6 { "tcp" } else { "shm" };
            assert!(rows.cell(row, "provider").starts_with(provider), "{said}");
            assert_eq!((rows.cell(row, "source_rank"), rows.cell(row, "target_rank")), ("0", "1"));
            assert_eq!(rows.cell(row, "source_registration"), "host");
        }
    }
}
