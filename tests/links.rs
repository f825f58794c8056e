//! What a link of known speed carries between two hosts (`tests/hosts/lab`). A program of its own:
//! ranks fill a link only where no other test wants the CPUs.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::{
    fs,
    io::{self, Write},
    thread,
};

use common::lab::Lab;

/// How often a row is measured that is slower than its link: the machine may be busy elsewhere.
const TRIES: u32 = 3;

/// The bandwidth of TCP's data on a link, in MB/s: of 1514 bytes of a full frame, which is what the
/// link counts, 1448 are data.
fn payload_mb_s(line_mb_s: f64) -> f64 {
    line_mb_s * 1448.0 / 1514.0
}

/// How many processes have wanted a CPU in the last minute, on average.
fn load() -> f64 {
    let loads = fs::read_to_string("/proc/loadavg").unwrap();
    loads.split_whitespace().next().unwrap().parse().unwrap()
}

/// Whether others want so much of the CPUs that the ranks, which are two, may not fill a link.
fn is_busy() -> bool {
    load() > 0.5 + thread::available_parallelism().unwrap().get() as f64
}

/// Measures rows, up to three times until each was as fast once as `share` of what the link
/// carries, which it must be unless the machine is busy elsewhere. None may ever be faster, by more
/// than a few milliseconds that the first word of a stream is seen late.
fn assert_at_line_rate(lab: &Lab, line_mb_s: f64, line: &str, share: f64) {
    let payload = payload_mb_s(line_mb_s);
    let mut best = Vec::new();
    for _ in 0..TRIES {
        let rows = lab.rows(1, &format!("rdma --provider tcp --nic eth0 --pattern one-way {line}"));
        let found: Vec<f64> =
            (0..rows.len()).map(|row| 1e3 * rows.number(row, "bandwidth_gb_s")).collect();
        let most = f64::min(1.03 * payload, line_mb_s);
        assert!(found.iter().all(|&mb_s| mb_s <= most), "{line}: {found:?} MB/s");
        best.resize(found.len(), 0.0);
        best.iter_mut().zip(found).for_each(|(best, mb_s): (&mut f64, f64)| *best = best.max(mb_s));
        if best.iter().all(|&mb_s| mb_s >= share * payload) {
            return;
        }
    }
    let sentence = format!("{line}: {best:?} MB/s of {payload}, {} processes want a CPU\n", load());
    assert!(is_busy(), "{sentence}");
    io::stderr().write_all(format!("TOO BUSY {sentence}").as_bytes()).unwrap();
}

#[test]
fn a_link_is_filled_and_never_seems_faster_than_it_is() {
    for (rate, line_mb_s) in [("200mbit", 25.0), ("1gbit", 125.0)] {
        let Some(lab) = Lab::up(2, rate) else { return };
        for (operation, share) in [("write,send", 0.97), ("read", 0.95)] {
            let long = format!("--operation {operation} --sizes 64K,1M --time-limit 300ms");
            assert_at_line_rate(&lab, line_mb_s, &long, share);
        }
        // Few transfers, which a CPU that is busy can keep from filling the link.
        let short = "--operation write,send,read --sizes 4K --samples 3 --time-limit 100ms";
        assert_at_line_rate(&lab, line_mb_s, short, 0.0);
    }
}

#[test]
fn transfers_that_last_as_long_as_a_run_are_at_line_rate_too() {
    let Some(lab) = Lab::up(2, "1gbit") else { return };
    let line = "--operation write,send,read --sizes 16M --time-limit 500ms";
    assert_at_line_rate(&lab, 125.0, line, 0.95);
}
