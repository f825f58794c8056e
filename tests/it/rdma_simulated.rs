//! RDMA over the interfaces of simulated machines: every time is known, and what g2g reports must be
//! it (docs/simulated-network.md). What is worked out here is worked out anew.

use std::{fs, thread, time::Duration};

use crate::common::{
    Rows, SOON, children, eventually, signal,
    simulation::{Simulated, assert_near},
    start, text, verified, wait,
};

const MIB: f64 = 1_048_576.0;

/// What a bandwidth may be off.
const SHARE: f64 = 0.005;

/// The defaults of `[efa]`.
const RATE_SHARE: f64 = 0.97;
const PROTOCOL_SHARE: f64 = 0.93;
const LATENCY_NS: f64 = 6000.0;
const PROTOCOL_NS: f64 = 2000.0;
const FAR_NS: f64 = 400.0;
const POST_NS: f64 = 100.0;
const OPERATION_NS: f64 = 150.0;

/// What a GPU's PCIe 5.0 x16 carries: that of host copies in the project's catalogue.
const PCIE_5_GB_S: f64 = 57.6;

/// What a copy engine reads of host memory over it, and what a copy and its event cost beside that.
const FROM_HOST_SHARE: f64 = 0.91;
const COPY_NS: f64 = 1700.0 + 1000.0;

/// Data of one operation on staged data.
const CHUNK: f64 = MIB / 2.0;

/// A kind of instance: what its interfaces do, and how many a GPU has.
#[derive(Clone, Copy, Debug)]
struct Instance {
    name: &'static str,
    gbit_s: f64,
    /// The nearest interfaces of a GPU.
    rails: f64,
    /// Those of a NUMA node.
    host_rails: f64,
    writes: bool,
    /// Of a GPU.
    pcie_gb_s: f64,
}

const P4D: Instance = Instance {
    name: "p4d.24xlarge",
    gbit_s: 100.0,
    rails: 1.0,
    host_rails: 2.0,
    writes: false,
    pcie_gb_s: PCIE_5_GB_S / 2.0,
};
const P5: Instance = Instance {
    name: "p5.48xlarge",
    rails: 4.0,
    host_rails: 16.0,
    writes: true,
    pcie_gb_s: PCIE_5_GB_S,
    ..P4D
};
const P5EN: Instance =
    Instance { name: "p5en.48xlarge", gbit_s: 200.0, rails: 4.0, host_rails: 8.0, ..P5 };
const P6_B200: Instance =
    Instance { name: "p6-b200.48xlarge", gbit_s: 400.0, rails: 2.0, host_rails: 4.0, ..P5 };

/// Its interfaces are behind no switch of a GPU.
const G6E: Instance = Instance { name: "g6e.48xlarge", rails: 2.0, writes: true, ..P4D };

impl Instance {
    /// Of an operation, whether libfabric makes messages of it on `efa`.
    fn has_protocol(self, operation: &str) -> bool {
        matches!(operation, "send" | "ping-pong") || operation == "write" && !self.writes
    }

    /// Bytes per nanosecond of one interface.
    fn link(self, operation: &str) -> f64 {
        let share = if self.has_protocol(operation) { PROTOCOL_SHARE } else { 1.0 };
        self.gbit_s / 8.0 * RATE_SHARE * share
    }

    fn way_ns(self, operation: &str) -> f64 {
        LATENCY_NS + if self.has_protocol(operation) { PROTOCOL_NS } else { 0.0 }
    }

    /// What flows of long operations reach over so many interfaces, in GB/s: what the slowest part
    /// does, or of staged data the copies at either end.
    fn bandwidth(self, operation: &str, memory: &str, rails: f64) -> f64 {
        let most = match memory {
            "host" => f64::INFINITY,
            "gpu" => self.pcie_gb_s,
            _ => CHUNK / (COPY_NS + CHUNK / (self.pcie_gb_s * FROM_HOST_SHARE)),
        };
        most.min(self.link(operation) * rails)
    }

    /// How long one operation takes that is alone.
    fn time_ns(self, operation: &str, bytes: f64) -> f64 {
        let there = POST_NS + OPERATION_NS + bytes / self.link(operation) + self.way_ns(operation);
        match operation {
            "ping-pong" => there,
            // The request of a read goes there first; a write's or message's end is told back.
            _ => there + self.way_ns(operation),
        }
    }
}

fn what(rows: &Rows, row: usize) -> String {
    let columns = ["pattern", "operation", "source_memory", "size_bytes", "status", "reason"];
    columns.map(|column| rows.cell(row, column)).join(" ")
}

/// The words of a run. Simulated time goes on however slow this machine is, hence the deadline.
fn words(line: &str) -> String {
    let defaults = [("--samples", "5"), ("--time-limit", "50ms"), ("--deadline", "300s")];
    let missing = defaults.iter().filter(|(flag, _)| !line.contains(flag));
    let missing: String = missing.map(|(flag, value)| format!(" {flag} {value}")).collect();
    format!("rdma {line}{missing} --quiet")
}

/// A run of two ranks on a machine like `instance`, with more in its file.
fn run(instance: Instance, more: &str, line: &str) -> Simulated {
    let machine = format!("schema = 1\nfrom = '{}'\n{more}", instance.name);
    Simulated::run(&machine, &words(line))
}

/// A run of ranks on so many hosts, each like `instance`.
fn run_between(hosts: u32, ranks: u32, instance: Instance, line: &str) -> Simulated {
    let machine = format!("schema = 1\nfrom = '{}'\nhosts = {hosts}\n", instance.name);
    Simulated::run_ranks(ranks, &machine, &words(line))
}

/// Where the data of a row is, as `--memory` calls it.
fn memory(rows: &Rows, row: usize) -> &str {
    match rows.cell(row, "gpu_path") {
        "staged" => "staged",
        _ => rows.cell(row, "source_memory"),
    }
}

/// Compares a row with the model.
fn assert_row(instance: Instance, rows: &Rows, row: usize, rails: f64) {
    let (what, operation) = (what(rows, row), rows.cell(row, "operation"));
    let (memory, bytes) = (memory(rows, row), rows.number(row, "size_bytes"));
    assert_eq!(rows.cell(row, "status"), "ok", "{what}");
    assert_eq!(rows.cell(row, "simulated"), "true");
    if rows.cell(row, "pattern") == "one-way" && memory != "staged" {
        let time_ns = instance.time_ns(operation, bytes);
        assert_near(rows.number(row, "latency_ns_p50"), time_ns, 0.002, &what);
    }
    if operation != "ping-pong" && bytes >= MIB {
        let expected = instance.bandwidth(operation, memory, rails);
        assert_near(rows.number(row, "bandwidth_gb_s"), expected, SHARE, &what);
    }
    if operation != "ping-pong" && bytes < 64.0 {
        // Of each rank that posts operations.
        let most = rows.number(row, "flows") * 1e9 / POST_NS.max(OPERATION_NS / rails);
        assert!(rows.number(row, "operations_per_s") <= most * 1.01, "{what}");
    }
    // Counters prove the path where the data is more than its headers.
    if bytes > 4096.0 {
        assert_eq!(rows.cell(row, "path_verdict"), "proven", "{what}");
        assert_eq!(rows.cell(row, "path"), "efa", "{what}");
    }
    // What carries it out, and what the words of it mean.
    let has_protocol = instance.has_protocol(operation);
    let is_message = matches!(operation, "send" | "ping-pong");
    assert_eq!(rows.cell(row, "shared_memory"), "no", "{what}");
    let fabric = if instance.writes && !is_message { "efa-direct" } else { "efa" };
    assert_eq!(rows.cell(row, "fabric"), fabric, "{what}");
    let is_emulated = if is_message { "" } else { ["false", "true"][usize::from(has_protocol)] };
    assert_eq!(rows.cell(row, "emulated"), is_emulated, "{what}");
    let completion = match operation {
        "read" | "ping-pong" => "arrival",
        _ if has_protocol => "delivery",
        _ => "transmit",
    };
    if memory == "staged" {
        return;
    }
    assert_eq!(rows.cell(row, "latency_completion"), completion, "{what}");
    if memory == "gpu" {
        let gpu_path = if has_protocol { "unproven" } else { "direct" };
        assert_eq!(rows.cell(row, "gpu_path"), gpu_path, "{what}");
    }
}

/// Runs on a machine like `instance` with these words, and compares all rows with the model.
fn assert_rows(instance: Instance, line: &str, count: usize) {
    assert_rows_of(&run(instance, "", line), instance, count);
}

/// The same, between two hosts.
fn assert_rows_between(instance: Instance, line: &str, count: usize) {
    assert_rows_of(&run_between(2, 2, instance, line), instance, count);
}

fn assert_rows_of(run: &Simulated, instance: Instance, count: usize) {
    let rows = run.rows();
    assert_eq!(rows.len(), count, "{}", run.stdout);
    for row in 0..rows.len() {
        let is_gpu = rows.cell(row, "source_memory") == "gpu";
        let rails = if is_gpu { instance.rails } else { instance.host_rails };
        assert_row(instance, &rows, row, rails);
    }
}

#[test]
fn on_a_p5_writes_and_reads_are_the_devices_and_messages_go_over_efa() {
    assert_rows(P5, "--memory gpu --pattern one-way --sizes 8,8M", 8);
    assert_rows_between(P5, "--memory gpu --pattern one-way --sizes 64K,8M", 16);
    let line = "--memory host --pattern one-way --operation write,send --sizes 1M";
    assert_rows(P5, line, 2);
}

#[test]
fn each_interface_has_a_window_of_its_own() {
    // 64 operations of 8 KiB are more than a round trip of one interface, and less than that of four.
    let line = "--memory gpu --pattern one-way --operation write --sizes 8K";
    let rows = run(P5, "", line).rows();
    let expected = P5.link("write") * P5.rails;
    assert_near(rows.number(0, "bandwidth_gb_s"), expected, SHARE, &what(&rows, 0));
}

#[test]
fn an_operation_that_lasts_longer_than_a_sample_takes_each_interface_as_often() {
    assert_rows(P5, "--memory gpu --pattern one-way --operation write --sizes 64M", 1);
}

#[test]
fn on_a_p4d_writes_are_made_of_messages_and_say_so() {
    assert_rows(P4D, "--memory gpu --pattern one-way --sizes 8,8M", 8);
    assert_rows_between(P4D, "--memory host --pattern one-way --sizes 64K,1M", 16);
}

#[test]
fn both_ways_at_once_each_way_is_as_fast_as_alone() {
    assert_rows(P4D, "--memory host --pattern both-ways --operation read --sizes 8M", 1);
    // Each confirmation waits behind the data of the other way, a part of a sample that many
    // samples make small.
    let line = "--memory gpu --gpus 0,2 --pattern both-ways --sizes 1M --samples 60";
    assert_rows(P4D, line, 3);
}

#[test]
fn two_flows_over_one_interface_share_it() {
    // GPU 0 and 1 have the same one. Time must wait for both ranks, else one has it for itself.
    let line = "--memory gpu --gpus 0,1 --pattern both-ways --operation read,write --sizes 64M";
    let run = run(P4D, "", &format!("{line} --samples 20"));
    let rows = run.rows();
    for row in 0..rows.len() {
        let expected = P4D.link(rows.cell(row, "operation")) / 2.0;
        assert_near(rows.number(row, "bandwidth_gb_s"), expected, SHARE, &what(&rows, row));
    }
    assert_eq!(rows.len(), 2);
}

#[test]
fn on_newer_instances_the_link_of_the_gpu_or_those_of_its_interfaces_are_the_bound() {
    // GPU 0 and 1 are on one switch with four interfaces of 200 Gbit/s, or two of 400: more than
    // a GPU's PCIe 5.0 x16 carries.
    for instance in [P5EN, P6_B200] {
        assert_rows(
            instance,
            "--memory gpu --operation write,read --pattern one-way --sizes 8M",
            2,
        );
        let line = "--memory host --pattern one-way --operation write,send --sizes 2M";
        assert_rows_between(instance, line, 4);
    }
}

#[test]
fn on_a_g6e_interfaces_do_not_reach_memory_of_gpus() {
    assert_rows_between(G6E, "--memory host --pattern one-way --sizes 64K,8M", 16);
    let run = run(G6E, "", "--memory gpu --pattern one-way --operation write,send --sizes 64K");
    let rows = run.rows();
    for row in 0..rows.len() {
        assert_eq!(rows.cell(row, "status"), "skipped", "{}", run.stdout);
        assert!(rows.cell(row, "reason").contains("GPU"), "{}", run.stdout);
    }
}

#[test]
fn without_cudas_runtime_library_memory_of_gpus_is_not_reached_and_the_library_is_named() {
    let line = "--memory gpu,staged --pattern one-way --operation write --sizes 64K";
    let run = run(P5, "[host]\ncuda_runtime = 'none'\n", line);
    let rows = run.rows();
    let status = |row| rows.cell(row, "status");
    assert_eq!([0, 1].map(status), ["skipped", "ok"], "{}", run.stdout);
    assert!(rows.cell(0, "reason").contains("looks for libcudart.so"), "{}", run.stdout);
}

#[test]
fn staged_data_is_as_fast_as_its_slowest_part() {
    let line = "--memory staged --operation write,read,send --sizes 8M --pattern";
    for instance in [P4D, P5, G6E] {
        assert_rows_between(instance, &format!("{line} one-way"), 6);
    }
    // What is said of chunks waits behind the chunks of the other way.
    assert_rows_between(P4D, &format!("{line} both-ways"), 3);
}

#[test]
fn each_of_four_hosts_sends_to_another_as_fast_as_if_it_were_alone() {
    let line = "--memory gpu --operation write,read --sizes 2M --pattern neighbours,bisection";
    let run = run_between(4, 4, P5, line);
    let rows = run.rows();
    assert_eq!(rows.len(), 4, "{}", run.stdout);
    for row in 0..rows.len() {
        assert_row(P5, &rows, row, P5.rails);
        assert_eq!(rows.cell(row, "flows"), "4");
    }
}

#[test]
fn memory_of_a_gpu_on_the_other_numa_node_of_its_interface_is_farther() {
    // The last interface of the host, of both ranks: there and back it is farther at each end.
    let line = "--memory gpu --gpus 0 --nic rdmap95s0-rdm --operation write --sizes 4K";
    let run = run_between(2, 2, P5, &format!("{line} --pattern one-way"));
    let rows = run.rows();
    let far_ns = P5.time_ns("write", 4096.0) + 4.0 * FAR_NS;
    for row in 0..2 {
        assert_near(rows.number(row, "latency_ns_p50"), far_ns, 0.002, &what(&rows, row));
    }
}

/// One interface is enough where the order of operations and faults count.
const FIRST_NIC: &str = "rdmap64s0-rdm";

/// What makes deliveries and queues as bad as they can be: operations overtake thousands of others,
/// an endpoint takes 32 at once, and its queue holds 64 completions.
const WORST: &str = "[efa]\nshuffle_ns = 400000\nqueue_entries = 32\n";

#[test]
fn whatever_order_operations_arrive_in_nothing_is_lost_and_nothing_is_there_twice() {
    for (instance, nic, seeds) in [(P5, FIRST_NIC, 1..=3), (P4D, "nearest", 4..=6)] {
        for seed in seeds {
            let line = "--memory host --sizes 8,1000,100K --operation write,read,send --window 64";
            let run = run(instance, WORST, &format!("{line} --nic {nic} --seed {seed}"));
            let rows = run.rows();
            assert_eq!(rows.len(), 2 * 3 * 3, "{}", run.stdout);
            for row in 0..rows.len() {
                assert_eq!(rows.cell(row, "status"), "ok", "{seed} {}", what(&rows, row));
            }
        }
    }
}

#[test]
fn a_target_that_is_late_loses_nothing_of_what_its_queue_has_room_for() {
    let folder = tempfile::tempdir().unwrap();
    let [machine, output] = ["machine.toml", "run"].map(|name| folder.path().join(name));
    fs::write(&machine, format!("schema = 1\nfrom = 'p5.48xlarge'\n{WORST}")).unwrap();
    let parent = start(&format!(
        "rdma --simulate {} --memory host --nic {FIRST_NIC} --operation write --pattern one-way \
         --sizes 8,1000 --time-limit 3s --precision 0.0001 --deadline 15s --quiet --no-report --output {}",
        machine.display(),
        output.display()
    ));
    let rows = || fs::read_to_string(output.join("run.csv")).unwrap_or_default().lines().count();
    assert!(eventually(SOON, || rows() > 1), "no row");
    thread::sleep(Duration::from_millis(300));
    // The network goes on without a rank that has not looked for a second.
    let target = children(&parent)[0];
    signal("STOP", target);
    thread::sleep(Duration::from_millis(2500));
    signal("CONT", target);
    let result = wait(parent);
    let said = format!("{}{}", text(&result.stdout), text(&result.stderr));
    assert_eq!(verified(&result, &output, &said).len(), 2, "{said}");
}

#[test]
fn a_byte_that_arrives_wrong_is_found() {
    let fault = "[[fault.nic]]\nwhat = 'corrupt'\nafter = 3000\nalways = true\n";
    for (operation, memory) in [("write", "host"), ("read", "gpu"), ("send", "host")] {
        let line =
            format!("--memory {memory} --operation {operation} --pattern one-way --sizes 64K");
        let run = run(P5, fault, &line);
        let rows = run.rows_whatever_happened();
        assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
        assert_eq!(rows.cell(0, "status"), "corrupt", "{}", run.stdout);
        assert_eq!(rows.cell(0, "corrupt_offset_bytes"), "32768", "{}", run.stdout);
        assert_eq!(rows.cell(0, "bandwidth_gb_s"), "", "{}", run.stdout);
    }
}

/// Rows of some thousand operations each: how many also follows from how fast this machine is.
const SIZES: &str = "64K,65K,66K,67K,68K,69K,70K,71K,72K,73K";

/// How many operations go well: more than those of one row, and fewer than those of all.
const AFTER: u32 = 20_000;

/// A run with a fault that begins in the middle, and ends within its deadline; what it has said. The
/// rows before are kept.
fn ended_by(fault: &str, memory: &str) -> String {
    let line = format!(
        "--memory {memory} --nic {FIRST_NIC} --operation write --pattern one-way --sizes {SIZES} \
         --deadline 10s"
    );
    let run = run(P5, fault, &line);
    let said = format!("{}{}", run.stdout, run.stderr);
    assert_eq!(run.code, 1, "{said}");
    let rows = run.rows_whatever_happened();
    assert_eq!(rows.cell(0, "status"), "ok", "{said}");
    let failed = (1..rows.len()).find(|row| rows.cell(*row, "status") == "failed");
    let failed = failed.unwrap_or_else(|| panic!("{said}"));
    assert_eq!(rows.cell(failed, "bandwidth_gb_s"), "", "{said}");
    said
}

#[test]
fn an_operation_that_fails_or_is_never_told_of_ends_its_row_with_the_reason() {
    for (what, told) in [
        ("failed", "the queue pair has failed"),
        ("unreachable", "no longer answers"),
        ("lost", "while waiting for rank"),
        ("event", "outside of operations"),
    ] {
        // What is unreachable stays so.
        let always = what == "unreachable";
        let fault = format!("[[fault.nic]]\nwhat = '{what}'\nafter = {AFTER}\nalways = {always}\n");
        let said = ended_by(&fault, "host");
        assert!(said.contains(told), "{what}: {said}");
    }
}

#[test]
fn a_rank_that_dies_or_stops_is_named_within_the_deadline() {
    for what in ["killed", "stopped"] {
        let fault = format!(
            "[[fault.call]]\nname = 'cuMemcpyAsync'\nwhat = '{what}'\nprocess = 1\n\
             after = {AFTER}\n"
        );
        let said = ended_by(&fault, "staged");
        assert!(said.contains("rank 1"), "{what}: {said}");
    }
}

mod long {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Those nearest to a rank's GPU.
    const NEAREST: &str = "nearest";

    /// Sizes, and for how long they are measured. Behind the last data of one way its confirmation
    /// waits for one or two operations of the other, by who began first: a part of a row that many
    /// operations make small.
    const SIZES: [(&str, &str); 4] = [
        ("8", ""),
        ("64K", ""),
        ("2M", "--samples 30 --time-limit 250ms"),
        ("64M", "--samples 30 --time-limit 250ms"),
    ];

    /// What is not as the model says in a run between hosts; the name of the first interface.
    fn check(
        hosts: u32,
        instance: Instance,
        memory: &str,
        nic: &str,
        wrong: &mut Vec<String>,
    ) -> String {
        // Of two hosts each one's way of each operation, and both ways at once but for ping-pong; of
        // four two patterns. There is no ping-pong of staged data. Four processes wake one another
        // for each of the smallest operations, so those are over one interface.
        let (patterns, rows_of_size) = match (hosts, memory) {
            (2, "staged") => ("one-way,both-ways", 2 * 3 + 3),
            (2, _) => ("one-way,both-ways", 2 * 4 + 3),
            _ => ("neighbours,bisection", 2 * 3),
        };
        let mut first = String::new();
        for (size, samples) in SIZES {
            if (hosts, nic, size) == (4, NEAREST, "8") {
                continue;
            }
            let line = format!(
                "--memory {memory} --operation write,read,send,ping-pong --pattern {patterns} \
                 --sizes {size} --nic {nic} {samples}"
            );
            let run = run_between(hosts, hosts, instance, &line);
            let rows = run.rows();
            assert_eq!(rows.len(), rows_of_size, "{line}: {}{}", run.stdout, run.stderr);
            for row in 0..rows.len() {
                let rails = match (nic, rows.cell(row, "source_memory")) {
                    (NEAREST, "host") => instance.host_rails,
                    (NEAREST, _) => instance.rails,
                    _ => 1.0,
                };
                let compare = || assert_row(instance, &rows, row, rails);
                if let Err(why) = catch_unwind(AssertUnwindSafe(compare)) {
                    let why = why.downcast_ref::<String>().cloned().unwrap_or_default();
                    wrong.push(format!("{} {hosts} {nic}: {why}", instance.name));
                }
            }
            first = rows.cell(0, "source_domain").split('+').next().unwrap_or_default().to_owned();
        }
        first
    }

    /// Every operation, memory, pattern and size on clusters like `instance`.
    fn assert_all(instance: Instance) {
        let mut wrong = Vec::new();
        let is_reached = |memory: &&str| *memory != "gpu" || instance.name != G6E.name;
        for memory in ["host", "gpu", "staged"].into_iter().filter(is_reached) {
            let nic = check(2, instance, memory, NEAREST, &mut wrong);
            check(2, instance, memory, &nic, &mut wrong);
            check(4, instance, memory, NEAREST, &mut wrong);
            check(4, instance, memory, &nic, &mut wrong);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    #[ignore = "takes up to an hour"]
    fn everything_on_p4d_is_as_fast_as_the_model() {
        assert_all(P4D);
    }

    #[test]
    #[ignore = "takes up to an hour"]
    fn everything_on_p5_is_as_fast_as_the_model() {
        assert_all(P5);
    }

    #[test]
    #[ignore = "takes up to an hour"]
    fn everything_on_p5en_is_as_fast_as_the_model() {
        assert_all(P5EN);
    }

    #[test]
    #[ignore = "takes up to an hour"]
    fn everything_on_p6_b200_is_as_fast_as_the_model() {
        assert_all(P6_B200);
    }

    #[test]
    #[ignore = "takes up to an hour"]
    fn everything_on_g6e_is_as_fast_as_the_model() {
        assert_all(G6E);
    }

    #[test]
    #[ignore = "takes some minutes"]
    fn in_a_thousand_orders_nothing_is_lost_and_nothing_is_there_twice() {
        for seed in 1..=1000 {
            let instance = if seed % 2 == 0 { P5 } else { P4D };
            let operation = ["write", "read", "send"][seed % 3];
            let line = format!(
                "--memory host --nic {FIRST_NIC} --sizes 1000 --operation {operation} \
                 --pattern one-way --window 64 --samples 2 --seed {seed}"
            );
            let run = run(instance, WORST, &line);
            let rows = run.rows();
            assert_eq!(rows.len(), 1, "{}", run.stdout);
            assert_eq!(rows.cell(0, "status"), "ok", "{seed} {}", what(&rows, 0));
        }
    }
}
