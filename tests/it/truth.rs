//! Wrong data gives no number: each fault of `tests/programs/faulty.rs` through the whole program.

use crate::common::{Rows, faulty, run, text};

const LENGTH: usize = (6 << 20) + 5;
const MIB: usize = 1 << 20;

/// Measures three cases of which the second suffers from `fault`; the offset of the first wrong
/// byte and how many are wrong.
fn corrupt(fault: &str) -> (usize, usize) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let mut command = faulty();
    command.env("FAULT", fault);
    let line = format!(
        "shm --numa 0:0 --sizes 64K,{LENGTH},1M --pattern one-way --time-limit 20ms --no-report --output {}",
        output.display()
    );
    let result = run(command, &line);
    assert_eq!(result.status.code(), Some(1), "{fault}: {}", text(&result.stderr));
    assert!(text(&result.stdout).contains("CORRUPT"), "{}", text(&result.stdout));

    let rows = Rows::read(&output);
    assert_eq!(rows.len(), 3);
    for row in [0, 2] {
        assert_eq!(rows.cell(row, "status"), "ok");
        assert!(rows.number(row, "bandwidth_gb_s") > 0.0);
    }
    assert_eq!(rows.cell(1, "status"), "corrupt");
    for column in ["bandwidth_gb_s", "bandwidth_gb_s_low", "bandwidth_gb_s_total", "latency_ns_p50"]
    {
        assert_eq!(rows.cell(1, column), "", "{fault}: {column}");
    }
    let (expected, found) = (rows.cell(1, "corrupt_expected"), rows.cell(1, "corrupt_found"));
    assert_ne!(expected, found);
    let reason = rows.cell(1, "reason");
    let hex = |byte: &str| format!("{:#04x}", byte.parse::<u8>().unwrap());
    assert!(reason.contains(&hex(expected)) && reason.contains(&hex(found)), "{reason}");
    assert_eq!(rows.cell(1, "corrupt_rank"), "1");
    let count = |column| rows.cell(1, column).parse().unwrap();
    (count("corrupt_offset_bytes"), count("corrupt_bytes"))
}

#[test]
fn one_byte_anywhere() {
    assert_eq!(corrupt("first-byte"), (0, 1));
    assert_eq!(corrupt("middle-byte"), (LENGTH / 2, 1));
    assert_eq!(corrupt("tail-byte"), (LENGTH - 3, 1));
    assert_eq!(corrupt("last-byte"), (LENGTH - 1, 1));
}

/// Of random bytes 1 in 256 is right by chance.
fn assert_about(count: usize, bytes: usize) {
    assert!(count > bytes * 99 / 100 && count <= bytes, "{count} of {bytes}");
}

/// The first byte of a block of other data is right by chance in 1 of 256 cases.
fn assert_near(offset: usize, begin: usize) {
    assert!((begin..begin + 8).contains(&offset), "{offset} for {begin}");
}

#[test]
fn a_block_shifted_by_exactly_2_mib() {
    let (offset, count) = corrupt("shifted-block");
    assert_near(offset, 2 * MIB);
    assert_about(count, 2 * MIB);
}

#[test]
fn two_blocks_swapped() {
    let (offset, count) = corrupt("swapped-blocks");
    assert_near(offset, MIB);
    assert_about(count, 2 * MIB);
}

#[test]
fn data_of_the_transfer_before() {
    // In bulk the transfers move the same bytes, and this is right from the second one on.
    let (offset, count) = corrupt("one-late");
    assert_near(offset, 0);
    assert_about(count, LENGTH);
}

#[test]
fn a_target_that_the_timed_copies_never_wrote() {
    assert_eq!(corrupt("never-written"), (0, LENGTH));
}
