//! NCCL's collectives on simulated machines as they are rented: rates, latencies and paths are
//! those of the model in docs/simulation.md, worked out here anew.

use std::path::Path;

use crate::common::{
    Rows, g2g,
    mpi::{mpich, open_mpi},
    run,
    simulation::{EVENT_NS, EXACT_EVENTS, Simulated, assert_latency, assert_near},
    text,
};

/// GPUs of one host, with what the model needs of them.
struct Machine {
    ranks: f64,
    /// The slowest hop of the ring.
    gb_s: f64,
    /// Within a GPU.
    local_gb_s: f64,
    /// What the protocol LL reaches at most.
    ll_gb_s: f64,
    has_nvlink: bool,
    /// Whether the NVSwitch reduces, and may.
    has_nvls: bool,
}

/// Twelve NVLinks 3 of 25 GB/s, read; eight A100.
const P4D: Machine = Machine {
    ranks: 8.0,
    gb_s: 0.82 * 300.0,
    local_gb_s: 0.75 * 1555.0 / 2.0,
    ll_gb_s: 87.7,
    has_nvlink: true,
    has_nvls: false,
};

/// Eighteen NVLinks 4 of 25 GB/s, written; eight H100 whose NVSwitch reduces.
const P5: Machine = Machine {
    ranks: 8.0,
    gb_s: 0.82 * 450.0,
    local_gb_s: 0.75 * 3350.0 / 2.0,
    ll_gb_s: 141.0,
    has_nvlink: true,
    has_nvls: true,
};

/// Of [`pcie_machine`].
const PCIE: Machine = Machine {
    ranks: 4.0,
    gb_s: 12.0,
    local_gb_s: 500.0,
    ll_gb_s: 87.7,
    has_nvlink: false,
    has_nvls: false,
};

/// Four GPUs that do not reach each other, 12 GB/s to the host and 14 back.
fn pcie_machine(rest: &str) -> String {
    format!(
        "schema = 1\nname = \"four GPUs\"\ngpu_count = 4\n\n[[gpu]]\nmemory_mib = 8192\n\
         compute_capability = [8, 6]\nto_host_sm = {{ gb_s = 12.0 }}\nfrom_host_sm = {{ gb_s = 14.0 }}\n\
         local_ce = {{ gb_s = 500.0 }}\n\
         \n[[pair]]\nread_allowed = false\nwrite_allowed = false\n{rest}"
    )
}

const ALL: &str =
    "all_reduce,all_gather,reduce_scatter,broadcast,reduce,alltoall,gather,scatter,sendrecv";

const QUICK: &str = "--place out-of-place --samples 3 --time-limit 2ms --quiet";

impl Machine {
    /// How long a collective of `bytes` lasts.
    fn ns(&self, operation: &str, bytes: f64) -> f64 {
        let Self { ranks: n, gb_s, .. } = *self;
        let factor = match operation {
            "all_reduce" => 2.0 * (n - 1.0) / n,
            "all_gather" | "reduce_scatter" => (n - 1.0) / n,
            "broadcast" | "reduce" => 1.0,
            // What a rank sends to others, or the root does.
            moved => {
                let hop = if self.has_nvlink { 3400.0 } else { 5700.0 };
                let own = if moved == "sendrecv" { 0.0 } else { 1.0 / n };
                return 8400.0 + hop + bytes * ((1.0 - own) / gb_s + own / self.local_gb_s);
            }
        };
        let steps = if operation == "all_reduce" { 2.0 * (n - 1.0) } else { n - 1.0 };
        // Base and hop of LL, LL128 and Simple in ns, and the bandwidth of the bus.
        let ring = if self.has_nvlink { [600.0, 1900.0, 3400.0] } else { [1000.0, 2500.0, 5700.0] };
        let tree = if self.has_nvlink { [600.0, 1250.0, 4000.0] } else { [1000.0, 1900.0, 4000.0] };
        let ll = self.ll_gb_s;
        let mut all = vec![
            6600.0 + steps * ring[0] + bytes * factor / ll.min(gb_s / 2.0),
            8400.0 + steps * ring[2] + bytes * factor / gb_s,
        ];
        if self.has_nvlink {
            all.push(14000.0 + steps * ring[1] + bytes * factor / (0.92 * gb_s));
        }
        if operation == "all_reduce" {
            let hops = 2.0 * (n - 1.0);
            all.push(6800.0 + hops * tree[0] + 2.0 * bytes / ll.min(0.92 * gb_s / 3.8));
            all.push(8400.0 + hops * tree[2] + 2.0 * bytes / (0.92 * gb_s));
            if self.has_nvlink {
                all.push(14000.0 + hops * tree[1] + 2.0 * bytes / (0.92 * gb_s * 7.0 / 9.0));
            }
        }
        if self.has_nvls && factor != 1.0 {
            let reduces = operation == "all_reduce";
            let gain = if reduces { 2.0 * (n - 1.0) / (n + 1.0) } else { 1.0 };
            all.push(25000.0 + bytes * factor / (0.85 * gb_s * gain));
        }
        all.into_iter().fold(f64::INFINITY, f64::min)
    }

    fn assert_rows(&self, rows: &Rows, count: usize, path: &dyn Fn(&str) -> &'static str) {
        assert_eq!(rows.len(), count);
        for row in 0..rows.len() {
            let (operation, bytes) = (rows.cell(row, "operation"), rows.number(row, "size_bytes"));
            let what = format!("{operation} of {bytes}: {}", rows.cell(row, "reason"));
            let ns = self.ns(operation, bytes);
            assert_near(rows.number(row, "bandwidth_gb_s"), bytes / ns, 0.005, &what);
            let bus = match operation {
                "all_reduce" => 2.0 * (self.ranks - 1.0) / self.ranks,
                "broadcast" | "reduce" | "sendrecv" => 1.0,
                _ => (self.ranks - 1.0) / self.ranks,
            };
            let busbw = rows.number(row, "bandwidth_gb_s_bus");
            assert_near(busbw, bus * bytes / ns, 0.005, &what);
            assert_latency(rows.number(row, "latency_ns_p50"), ns, &what);
            assert_eq!(rows.cell(row, "path_verdict"), "proven", "{what}");
            assert_eq!(rows.cell(row, "path"), path(rows.cell(row, "algorithm")), "{what}");
        }
    }
}

/// One operation is enough where none differs from another.
const LARGE: &str =
    "--sizes 1G --place out-of-place --samples 1 -n 1 -w 0 --time-limit 2ms --quiet";

/// The rows of a run on an instance.
fn instance(line: &str) -> Rows {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let result = run(g2g(), &format!("nccl {line} --no-report --output {}", output.display()));
    assert_eq!(result.status.code(), Some(0), "{line}: {}", text(&result.stderr));
    assert_logs(&output);
    Rows::read(&output)
}

/// What NCCL has written is beside the rows, and not among g2g's own words.
fn assert_logs(output: &Path) {
    let log = std::fs::read_to_string(output.join("nccl/rank-0.log")).unwrap();
    assert!(log.contains("NCCL INFO NCCL version") && log.contains("Init COMPLETE"), "{log}");
}

#[test]
fn on_eight_a100_all_is_as_the_model_says() {
    let line = format!("--simulate p4d.24xlarge --operation {ALL} --sizes 1M {QUICK}");
    P4D.assert_rows(&instance(&line), 9, &|_| "P2P/direct pointer/read x24");
    // By one process a GPU, and a larger size.
    let ranks = "--operation all_reduce,alltoall --sizes 1M,8M --ranks 8";
    let line = format!("--simulate p4d.24xlarge {ranks} {QUICK}");
    P4D.assert_rows(&instance(&line), 4, &|_| "P2P/CUMEM/read x24");
}

#[test]
fn on_eight_a100_ranks_of_a_launcher_find_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for mpi in [&open_mpi()[0], &mpich()[1]] {
        let output = folder.path().join(format!("mpich-{}", mpi.is_mpich()));
        let line = format!(
            "nccl --simulate p4d.24xlarge --operation all_reduce,reduce_scatter,sendrecv \
             --sizes 1M {QUICK} --no-report --output {}",
            output.display()
        );
        let (result, said) = mpi.outcome(8, &line);
        assert_eq!(result.status.code(), Some(0), "{said}");
        assert_logs(&output);
        P4D.assert_rows(&Rows::read(&output), 3, &|_| "P2P/CUMEM/read x24");
    }
}

/// The path on the eight H100 with an algorithm.
fn path_of_p5(algorithm: &str) -> &'static str {
    match algorithm {
        "NVLS" => "P2P/direct pointer x24 + NVLS",
        _ => "P2P/direct pointer x24",
    }
}

/// Whether the NVSwitch reduced for one of the rows.
fn has_nvls(rows: &Rows) -> bool {
    (0..rows.len()).any(|row| rows.cell(row, "algorithm") == "NVLS")
}

#[test]
fn on_eight_h100_the_switch_reduces_unless_it_is_forbidden() {
    let line = format!("--simulate p5.48xlarge --operation {ALL} --sizes 1M {QUICK}");
    P5.assert_rows(&instance(&line), 9, &path_of_p5);
    let line = "--simulate p5.48xlarge --operation all_reduce,all_gather,reduce_scatter \
                --sizes 1M,8M";
    let rows = instance(&format!("{line} {QUICK}"));
    P5.assert_rows(&rows, 6, &path_of_p5);
    assert!(has_nvls(&rows));

    let without = Machine { has_nvls: false, ..P5 };
    let rows = instance(&format!("{line} {QUICK} --nccl-env NCCL_NVLS_ENABLE=0"));
    without.assert_rows(&rows, 6, &path_of_p5);
    assert!((0..rows.len()).all(|row| rows.cell(row, "nccl_env") == "NCCL_NVLS_ENABLE=0"));
    assert!(!has_nvls(&rows));
}

#[test]
fn without_peer_access_all_goes_through_the_host() {
    let line = format!("nccl --operation {ALL} --sizes 1M,4M {QUICK}");
    let run = Simulated::run(&pcie_machine(""), &line);
    PCIE.assert_rows(&run.rows(), 18, &|_| "SHM/direct x4");
}

#[test]
fn a_path_that_was_asked_for_and_not_taken_is_said() {
    let wanted = "--operation all_reduce --sizes 64K --nccl-env NCCL_P2P_LEVEL=SYS";
    let run = Simulated::run(&pcie_machine(""), &format!("nccl {wanted} {QUICK}"));
    let rows = run.rows();
    assert_eq!(rows.cell(0, "path_verdict"), "contradicted");
    let reason = rows.cell(0, "path_reason");
    assert!(reason.starts_with("NCCL_P2P_LEVEL=SYS was set; and rank "), "{reason}");
    assert!(reason.contains("SHM/direct"), "{reason}");
    assert!(run.stdout.contains("path CONTRADICTED: NCCL_P2P_LEVEL=SYS"), "{}", run.stdout);
}

#[test]
fn latencies_are_distributed_as_they_were_made() {
    const EXTRA_NS: f64 = 50_000.0;
    let jitter = "\n[[fault.jitter]]\nshare = 0.05\nextra_ns = 50000\n";
    let line =
        "nccl --operation all_gather --sizes 64K --place out-of-place --effort thorough --quiet";
    let machine = pcie_machine(&format!("{jitter}{EXACT_EVENTS}"));
    let rows = Simulated::run(&machine, line).rows();
    let ns = PCIE.ns("all_gather", rows.number(0, "size_bytes")) + EVENT_NS;
    assert!(rows.number(0, "latency_samples") >= 1000.0);
    for (column, expected) in [
        ("latency_ns_min", ns),
        ("latency_ns_p50", ns),
        ("latency_ns_p90", ns),
        ("latency_ns_p99", ns + EXTRA_NS),
        ("latency_ns_p999", ns + EXTRA_NS),
        ("latency_ns_max", ns + EXTRA_NS),
    ] {
        assert_near(rows.number(0, column), expected, 0.005, column);
    }
}

/// What `scripts/test --long` runs.
mod long {
    use super::*;

    #[test]
    #[ignore = "takes minutes and 17 GiB"]
    fn on_eight_a100_a_gibibyte_is_as_the_model_says() {
        let line = format!("--simulate p4d.24xlarge --operation {ALL} {LARGE}");
        P4D.assert_rows(&instance(&line), 9, &|_| "P2P/direct pointer/read x24");
    }

    #[test]
    #[ignore = "takes minutes and 17 GiB"]
    fn on_eight_h100_a_gibibyte_is_as_the_model_says() {
        let line = format!("--simulate p5.48xlarge --operation {ALL} {LARGE}");
        let rows = instance(&line);
        P5.assert_rows(&rows, 9, &path_of_p5);
        assert!(has_nvls(&rows));

        let without = Machine { has_nvls: false, ..P5 };
        let rows = instance(&format!("{line} --nccl-env NCCL_NVLS_ENABLE=0"));
        without.assert_rows(&rows, 9, &path_of_p5);
        assert!(!has_nvls(&rows));
    }

    #[test]
    #[ignore = "takes minutes and 9 GiB"]
    fn without_peer_access_a_gibibyte_goes_through_the_host() {
        let run = Simulated::run(&pcie_machine(""), &format!("nccl --operation {ALL} {LARGE}"));
        PCIE.assert_rows(&run.rows(), 9, &|_| "SHM/direct x4");
    }
}
