//! What is expected, and what is said of machines that are slower than they should be.

use std::{fs, path::Path};

use crate::common::{Rows, g2g, run, simulation::Simulated, text};
use g2g::{
    judge::expected::{Known, known},
    plan::catalogue::Catalogue,
};

/// What makes a run short.
const QUICK: &str = "--samples 6 --time-limit 10ms";

/// A line for a path of an instance type; equal ones of several types stand together.
fn golden() -> String {
    let catalogue = Catalogue::built_in();
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for (name, instance) in &catalogue.instance {
        for Known { path, gb_s, gb_s_low, gb_s_high, derivation, .. } in
            known(name, instance, catalogue)
        {
            let rates = [gb_s, gb_s_low, gb_s_high]
                .map(|rate| rate.map_or_else(|| "?".to_owned(), |rate| format!("{rate:.1}")));
            let line = format!("{path} | {} | {derivation}", rates.join(" "));
            match lines.iter_mut().find(|(known, _)| *known == line) {
                Some((_, names)) => names.push(name),
                None => lines.push((line, vec![name])),
            }
        }
    }
    let line = |(line, names): (String, Vec<&str>)| format!("{line} | {}\n", names.join(" "));
    let mut lines: Vec<String> = lines.into_iter().map(line).collect();
    lines.sort();
    lines.concat()
}

#[test]
fn every_expected_value_of_every_instance_type_is_the_reviewed_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/expected.txt");
    let reviewed = fs::read_to_string(path).unwrap();
    let found = golden();
    for (reviewed, found) in reviewed.lines().zip(found.lines()) {
        assert_eq!(found, reviewed);
    }
    assert_eq!(found.lines().count(), reviewed.lines().count());
}

/// The verdicts of all rows with a bandwidth, each of which must have one.
fn verdicts(rows: &Rows) -> Vec<(usize, String)> {
    let of_copies = (0..rows.len()).filter(|&row| rows.cell(row, "status") == "ok");
    of_copies.map(|row| (row, rows.cell(row, "verdict").to_owned())).collect()
}

/// An instance with something wrong.
fn instance(name: &str, defect: &str) -> String {
    format!("schema = 1\nname = \"defect\"\nfrom = \"{name}\"\n{defect}")
}

#[test]
fn a_healthy_machine_has_no_row_that_is_not_as_expected() {
    for (name, line) in [
        ("p4d.24xlarge", "p2p --operation copy --gpus 0,5"),
        ("g5.48xlarge", "shm --gpus 0,7 --slot-size 512K"),
        ("p3dn.24xlarge", "p2p --operation copy --gpus 0,3 --pattern both-ways"),
    ] {
        let run = Simulated::run(&instance(name, ""), &format!("{line} {QUICK}"));
        let rows = run.rows();
        let verdicts = verdicts(&rows);
        assert!(!verdicts.is_empty());
        for (row, verdict) in verdicts {
            let reason = rows.cell(row, "verdict_reason");
            assert_eq!(verdict, "expected", "{name}: {reason}");
            let fraction = rows.number(row, "expected_fraction");
            let by_hand = rows.number(row, "bandwidth_gb_s") / rows.number(row, "expected_gb_s");
            assert!((fraction - by_hand).abs() < 1e-6, "{name}: {fraction}");
        }
        for word in ["slower", "below what", "above what"] {
            assert!(!run.stdout.contains(word), "{name}: {}", run.stdout);
        }
    }
}

#[test]
fn gpus_without_peer_access_are_skipped_and_not_below() {
    let run = Simulated::run(
        &instance("g5.48xlarge", ""),
        &format!("p2p --operation copy --gpus 0,1 {QUICK}"),
    );
    let rows = run.rows();
    for row in 0..rows.len() {
        assert_eq!(rows.cell(row, "status"), "skipped");
        assert_eq!(rows.cell(row, "verdict"), "");
    }
}

#[test]
fn a_slow_pair_is_below_and_no_other() {
    let slow = "\n[[fault.slow]]\nsource = 1\ntarget = 0\nfraction = 0.5\n";
    let line = format!("p2p --operation copy --gpus 0-2 {QUICK}");
    let run = Simulated::run(&instance("p4d.24xlarge", slow), &line);
    let rows = run.rows();
    for (row, verdict) in verdicts(&rows) {
        let ends = (rows.cell(row, "source_gpu"), rows.cell(row, "target_gpu"));
        let wanted = if ends == ("1", "0") { "below" } else { "expected" };
        assert_eq!(verdict, wanted, "{ends:?}: {}", rows.cell(row, "verdict_reason"));
        assert!(rows.cell(row, "expected_from").starts_with("12 NVLinks of generation 3"));
    }
    let said = "GPU 1 -> GPU 0, 64 MiB is below what is expected, 4";
    let line = run.stdout.lines().find(|line| line.contains(said)).unwrap();
    assert!(line.contains(" % (4 rows): less than "), "{}", run.stdout);
}

#[test]
fn links_that_are_down_are_expected_to_carry_nothing_and_said_to_be_missing() {
    let down = "\n[[gpu]]\nordinals = [2]\nnvlinks_down = [3, 4]\n";
    let line = format!("p2p --operation copy --gpus 0-2 --engine ce --issuer write {QUICK}");
    let run = Simulated::run(&instance("p4d.24xlarge", down), &line);
    let rows = run.rows();
    for (row, verdict) in verdicts(&rows) {
        let ends = [rows.cell(row, "source_gpu"), rows.cell(row, "target_gpu")];
        let (wanted, links) =
            if ends.contains(&"2") { ("below", "10 NVLinks") } else { ("expected", "12 NVLinks") };
        let reason = rows.cell(row, "verdict_reason");
        assert_eq!(verdict, wanted, "{ends:?}: {reason}");
        assert!(rows.cell(row, "expected_from").starts_with(links), "{ends:?}");
        assert!((rows.number(row, "expected_fraction") - 1.0).abs() < 0.03, "{ends:?}");
        assert_eq!(reason.contains("2 of the 12 NVLinks of GPU 2 are down"), wanted == "below");
    }
    let note = "note: NVLinks of GPU 2: 10 up here, 12 up by";
    assert!(run.stderr.contains(note), "{}", run.stderr);
}

#[test]
fn a_narrow_pcie_link_is_below_though_it_does_what_it_can() {
    let narrow = "\n[[gpu]]\nordinals = [1]\npcie_lanes = 8\n\
                  from_host_ce = { gb_s = 6.5, latency_ns = 1700 }\n\
                  to_host_ce = { gb_s = 6.5, latency_ns = 1700 }\n";
    let line = format!("local --operation copy --gpus 0-1 --engine ce --pattern one-way {QUICK}");
    let run = Simulated::run(&instance("p4d.24xlarge", narrow), &line);
    let rows = run.rows();
    for (row, verdict) in verdicts(&rows) {
        let is_own = rows.cell(row, "source_memory") == rows.cell(row, "target_memory");
        let gpus = [rows.cell(row, "source_gpu"), rows.cell(row, "target_gpu")];
        let wanted = if gpus.contains(&"1") && !is_own { "below" } else { "expected" };
        let reason = rows.cell(row, "verdict_reason");
        assert_eq!(verdict, wanted, "{gpus:?}: {reason}");
        assert_eq!(reason.contains("GPU 1 has 8 of 16 PCIe lanes"), wanted == "below");
    }
    assert!(run.stderr.contains("note: PCIe lanes of GPU 1: 8 here, 16 by"), "{}", run.stderr);
}

#[test]
fn a_machine_that_nobody_knows_is_unknown_until_the_user_describes_it() {
    let machine =
        "schema = 1\nname = \"lab\"\n\n[[gpu]]\nname = \"NVIDIA Lab 1\"\nmemory_mib = 4096\n";
    let line = format!(
        "local --operation copy --gpus 0 --engine ce --pattern one-way --sizes 16M {QUICK}"
    );
    let own = |rows: &Rows| {
        let is_own = |row: &usize| {
            rows.cell(*row, "source_memory") == "gpu" && rows.cell(*row, "target_memory") == "gpu"
        };
        (0..rows.len()).find(is_own).unwrap()
    };
    let rows = Simulated::run(machine, &line).rows();
    let row = own(&rows);
    assert_eq!(rows.cell(row, "verdict"), "unknown");
    let reason = rows.cell(row, "verdict_reason");
    assert!(reason.contains("no memory bandwidth of a GPU called NVIDIA Lab 1"), "{reason}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lab.toml");
    let describes = "schema = 1\n[gpu.lab]\nname = \"Lab\"\ndriver_names = [\"Lab 1\"]\n";
    for (bandwidth, verdict) in [(2000, "expected"), (3000, "below")] {
        fs::write(&file, format!("{describes}mem_bw_gbs = {bandwidth}\n")).unwrap();
        let line = format!("{line} --catalogue {}", file.display());
        let rows = Simulated::run(machine, &line).rows();
        assert_eq!(rows.cell(own(&rows), "verdict"), verdict, "{bandwidth}");
    }
    let output = run(g2g(), "local --operation copy --catalogue /nowhere/lab.toml");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--catalogue /nowhere/lab.toml: "));
}

#[test]
fn nvlinks_that_nvml_does_not_tell_are_not_taken_for_pcie() {
    let refused =
        "\n[[fault.call]]\nname = \"nvmlDeviceGetNvLinkState\"\ncode = 3\nalways = true\n";
    let line =
        format!("p2p --operation copy --gpus 0,1 --engine ce --issuer write --sizes 16M {QUICK}");
    let run = Simulated::run(&instance("p4d.24xlarge", refused), &line);
    let rows = run.rows();
    assert!(!verdicts(&rows).is_empty());
    for (row, verdict) in verdicts(&rows) {
        assert_eq!(verdict, "unknown");
        let reason = rows.cell(row, "verdict_reason");
        assert!(reason.starts_with("NVML does not tell the NVLinks of GPU "), "{reason}");
    }
    assert!(!run.stderr.contains("note: NVLinks"), "{}", run.stderr);
}

#[test]
fn a_generation_of_pcie_without_a_known_rate_is_named() {
    let machine = "schema = 1\nname = \"lab\"\n\n[[gpu]]\nmemory_mib = 4096\n\
                   pcie_generation = 7\npcie_generation_max = 7\n";
    let line = format!(
        "local --operation copy --gpus 0 --engine ce --pattern one-way --sizes 16M {QUICK}"
    );
    let rows = Simulated::run(machine, &line).rows();
    let reasons: Vec<&str> = (0..rows.len()).map(|row| rows.cell(row, "verdict_reason")).collect();
    let unknown = "GPU 0 is connected by PCIe 7";
    assert!(reasons.iter().any(|reason| reason.contains(unknown)), "{reasons:?}");
}

#[test]
fn without_nvml_the_kernel_tells_the_pcie_link() {
    let machine = "schema = 1\nname = \"lab\"\n\n[[gpu]]\nmemory_mib = 4096\n\
                   pcie_generation = 1\npcie_generation_max = 4\n\n\
                   [[fault.call]]\nname = \"nvmlInit\"\ncode = 999\nalways = true\n";
    let line = format!(
        "local --operation copy --gpus 0 --engine ce --pattern one-way --sizes 16M {QUICK}"
    );
    let rows = Simulated::run(machine, &line).rows();
    let told = |column| (0..rows.len()).map(|row| rows.cell(row, column)).collect::<Vec<&str>>();
    let ways = told("expected_from");
    let has_link = ways.iter().any(|way| way.starts_with("PCIe 4 x16"));
    assert!(has_link, "{ways:?} {:?}", told("verdict_reason"));
}

#[test]
fn a_number_without_an_interval_is_not_judged() {
    let line = "p2p --operation copy --gpus 0,1 --engine ce --issuer write --sizes 16M --samples 1";
    let rows = Simulated::run(&instance("p4d.24xlarge", ""), line).rows();
    assert!(!verdicts(&rows).is_empty());
    for (row, verdict) in verdicts(&rows) {
        assert_eq!(verdict, "unknown");
        assert_eq!(rows.cell(row, "verdict_reason"), "too few samples for an interval");
    }
}

#[test]
fn a_machine_with_seven_of_eight_gpus_is_told_so() {
    let line = format!("p2p --operation copy --gpus 0,1 --engine ce --issuer write {QUICK}");
    let run = Simulated::run(&instance("p4d.24xlarge", "gpu_count = 7\n"), &line);
    assert_eq!(run.code, 0);
    assert!(run.stderr.contains("note: GPUs: 7 here, 8 by"), "{}", run.stderr);
    let quiet =
        Simulated::run(&instance("p4d.24xlarge", "gpu_count = 7\n"), &format!("{line} --quiet"));
    assert_eq!(quiet.stderr, "");
}
