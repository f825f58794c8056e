//! RDMA from outside, over libfabric's tcp and shared memory.

use std::path::Path;

use crate::common::{Rows, g2g, run, text, verified_rdma};

fn cells<'a>(rows: &'a Rows, name: &str) -> Vec<&'a str> {
    (0..rows.len()).map(|row| rows.cell(row, name)).collect()
}

#[test]
fn every_operation_is_verified_from_8_bytes_to_64_mib() {
    for (provider, domain) in [("tcp", "lo"), ("shm", "shm")] {
        let rows = verified_rdma(&format!(
            "--ranks 2 --provider {provider} --sizes 8,70001,64M --pattern one-way"
        ));
        assert_eq!(rows.len(), 12);
        for row in 0..rows.len() {
            let cell = |name: &str| rows.cell(row, name);
            assert!(cell("provider").starts_with(provider));
            assert_eq!((cell("source_domain"), cell("target_domain")), (domain, domain));
            assert_eq!(
                (cell("source_registration"), cell("target_registration")),
                ("host", "host")
            );
            assert!(!cell("protocol").is_empty() && !cell("fabric").is_empty());
            assert_eq!(cell("source_host"), cell("target_host"));
            let (issuer, bandwidth, latency) = match cell("operation") {
                "write" => ("write", "confirmed", "delivery"),
                "send" => ("", "confirmed", "delivery"),
                "read" => ("read", "arrival", "arrival"),
                _ => ("", "", "arrival"),
            };
            assert_eq!(cell("issuer"), issuer);
            assert_eq!(cell("bandwidth_completion"), bandwidth);
            assert_eq!(cell("latency_completion"), latency);
            // More than 4 MiB are not under way at once, but two operations are.
            let window = match (cell("operation"), cell("size_bytes")) {
                ("ping-pong", _) => "1",
                (_, "67108864") => "2",
                (_, "70001") => "59",
                _ => "64",
            };
            assert_eq!(cell("window"), window);
        }
    }
}

#[test]
fn flows_at_once_are_counted_and_the_slowest_rank_is_named() {
    let rows = verified_rdma(
        "--ranks 3 --provider shm --sizes 4K --operation write,read \
         --pattern one-to-all,neighbours,all-pairs",
    );
    // From one to all as often as there are ranks.
    assert_eq!(rows.len(), 2 * (3 + 1 + 1));
    for row in 0..rows.len() {
        let flows = match rows.cell(row, "pattern") {
            "one-to-all" => "2",
            "neighbours" => "3",
            _ => "6",
        };
        assert_eq!(rows.cell(row, "flows"), flows);
        let asks_alone =
            rows.cell(row, "pattern") == "one-to-all" && rows.cell(row, "operation") == "write";
        // One rank that asks for everything has nobody to be slower than.
        assert_eq!(rows.cell(row, "slowest_rank").is_empty(), asks_alone, "row {row}");
    }
}

#[test]
fn the_window_and_the_interface_are_what_was_asked_for() {
    let narrow = verified_rdma(
        "--provider tcp --sizes 64K --operation write --pattern one-way --window 1 --nic lo",
    );
    assert_eq!(cells(&narrow, "window"), ["1"]);
    assert_eq!(cells(&narrow, "source_domain"), ["lo"]);
    let wide = verified_rdma(
        "--provider shm --sizes 64K --operation write --pattern one-way --window 200",
    );
    assert_eq!(cells(&wide, "window"), ["200"]);
}

#[test]
fn several_endpoints_share_an_interface_and_the_operations_of_a_second_are_counted() {
    for provider in ["tcp", "shm"] {
        let rows = verified_rdma(&format!(
            "--provider {provider} --sizes 8,70001 --pattern one-way --endpoints 3 \
             --operation write,read,send,ping-pong"
        ));
        assert_eq!(rows.len(), 8);
        for row in 0..rows.len() {
            let number = |name: &str| rows.cell(row, name).parse::<f64>().ok();
            assert_eq!(rows.cell(row, "endpoints"), "3");
            assert!(!rows.cell(row, "source_domain").contains('+'));
            let Some(rate) = number("operations_per_s") else {
                assert_eq!(rows.cell(row, "operation"), "ping-pong");
                continue;
            };
            let bytes = rate * number("size_bytes").unwrap();
            let total = number("bandwidth_gb_s_total").unwrap() * 1e9;
            assert!((bytes - total).abs() < 1e-6 * total, "{bytes} {total}");
        }
        // 64 on each, of data that 4 MiB hold.
        assert_eq!(rows.cell(0, "window"), "192");
    }
}

#[test]
fn other_versions_of_libfabric_are_measured_too() {
    let library =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("target/mpich/lib/mpich/libfabric.so.1");
    assert!(library.exists(), "{}: scripts/test installs it", library.display());
    let rows = verified_rdma(&format!(
        "--provider tcp,shm --sizes 64K --pattern one-way --fabric-lib {}",
        library.display()
    ));
    assert_eq!(rows.len(), 8);
    assert_eq!(rows.cell(0, "provider"), "tcp");
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    for (line, part) in [
        ("--provider efas", "libfabric does not offer it here (on every host); here are: "),
        ("--memory gpu", "no GPU is on "),
        ("--nic ib0 --provider tcp", "has no such interface on "),
        ("--window 0", "0 is not in 1..=65536"),
        ("--endpoints 65", "65 is not in 1..=64"),
        ("--fabric ib --provider tcp", "has no such fabric on "),
        ("--ranks 1", "give --ranks 2 or more"),
        ("--fabric-lib /absent/libfabric.so", "/absent/libfabric.so: cannot open"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = g2g();
        command.current_dir(&folder);
        let result = run(command, &format!("rdma {line}"));
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{line}: {said}");
        assert!(said.starts_with("error: ") && said.contains(part), "{line}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "{line} leaves files");
    }
}
