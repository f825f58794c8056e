//! On simulated machines every time is known: what g2g reports must be it.

use crate::common::{
    Rows, g2g, run,
    simulation::{
        EVENT_NS, FROM_HOST_CE, FROM_HOST_SM, GPUS, HOST_LOAD_NS, LAUNCH_NS, LOAD_NS, LOCAL_CE,
        LOCAL_SM, Rate, Simulated, TO_HOST_CE, TO_HOST_SM, Way, assert_latency, assert_near,
        four_gpus,
    },
};

const MIB: f64 = 1_048_576.0;

/// What a bandwidth may be off.
const SHARE: f64 = 0.005;

fn way(rows: &Rows, row: usize) -> Way {
    let gpu = |column| rows.cell(row, column).parse().unwrap();
    Way { source: gpu("source_gpu"), target: gpu("target_gpu") }
}

fn what(rows: &Rows, row: usize) -> String {
    let columns =
        ["pattern", "operation", "issuer", "engine", "source_gpu", "target_gpu", "size_bytes"];
    columns.map(|column| rows.cell(row, column)).join(" ")
}

/// Compares bandwidth and median latency of a row with the time of one operation.
fn assert_row(rows: &Rows, row: usize, time_ns: f64) {
    let (what, bytes) = (what(rows, row), rows.number(row, "size_bytes"));
    assert_eq!(rows.cell(row, "status"), "ok", "{what}: {}", rows.cell(row, "reason"));
    assert_eq!(rows.cell(row, "simulated"), "true");
    assert_near(rows.number(row, "bandwidth_gb_s"), bytes / time_ns, SHARE, &what);
    assert_latency(rows.number(row, "latency_ns_p50"), time_ns, &what);
    // What a latency holds beside the operation stands beside it.
    assert_eq!(rows.cell(row, "clock_accuracy_ns"), "500");
    let empty = ["empty_span_ns", "empty_kernel_ns"].map(|column| rows.number(row, column));
    if rows.cell(row, "flows") == "1" {
        assert!((empty[0] - EVENT_NS).abs() <= 200.0, "{what}: {empty:?}");
        assert!((empty[1] - EVENT_NS - LAUNCH_NS).abs() <= 200.0, "{what}: {empty:?}");
    }
}

/// All pairs, by both engines, asked for by both, at these sizes.
fn assert_pairs(run: &Simulated, sizes: usize) {
    let rows = run.rows();
    let (mut copies, mut chases) = (0, 0);
    for row in 0..rows.len() {
        let (way, issuer) = (way(&rows, row), rows.cell(row, "issuer"));
        if rows.cell(row, "operation") == "chase" {
            let latency = rows.number(row, "latency_ns_p50");
            assert_near(latency, way.load_latency_ns(), 0.01, &what(&rows, row));
            chases += 1;
        } else {
            let engine = rows.cell(row, "engine");
            assert_row(&rows, row, way.time_ns(engine, issuer, rows.number(row, "size_bytes")));
            copies += 1;
        }
    }
    assert_eq!((copies, chases), (12 * 2 * 2 * sizes, 12));
}

#[test]
fn every_way_between_four_gpus_is_measured_by_both_engines_and_issuers() {
    let run =
        Simulated::run(&four_gpus("", ""), "p2p --sizes 1M,8M,64M --time-limit 20ms --details");
    assert_pairs(&run, 3);
    // The ratio of reads to writes stands in a matrix of each size.
    for engine in ["ce", "sm"] {
        let title = format!("p2p copy {engine}, 64 MiB, ratio read / write");
        let matrix: Vec<&str> =
            run.stdout.lines().skip_while(|line| !line.starts_with(&title)).take(6).collect();
        assert!(matrix[0].ends_with(" [SIMULATED]"), "{}", run.stdout);
        for way in Way::all() {
            let line = matrix[2 + way.source as usize].replace(" (", "(").replace(" to ", "-");
            let cell = line.split_whitespace().nth(2 + way.target as usize).unwrap().to_owned();
            let found: f64 = cell.split('(').next().unwrap().parse().unwrap();
            let time = |issuer| way.time_ns(engine, issuer, 64.0 * MIB);
            assert_near(found, time("write") / time("read"), SHARE, &format!("{way:?} {cell}"));
        }
    }
}

#[test]
fn four_ranks_measure_the_same_by_ipc_and_by_cumem() {
    for handle in ["ipc", "cumem"] {
        let line = format!("p2p --ranks 4 --handle {handle} --sizes 1M,8M --time-limit 10ms");
        let run = Simulated::run(&four_gpus("", ""), &line);
        assert_pairs(&run, 2);
        let rows = run.rows();
        for row in 0..rows.len() {
            assert_eq!(rows.cell(row, "handle"), handle);
            assert_eq!(rows.cell(row, "source_rank"), rows.cell(row, "source_gpu"));
        }
    }
}

#[test]
fn ranks_with_several_gpus_reach_their_own_and_those_of_others_by_either_handle() {
    for handle in ["ipc", "cumem"] {
        let line = format!(
            "p2p --ranks 2 --handle {handle} --pattern one-to-all,all-pairs --operation copy \
             --sizes 64K --time-limit 10ms"
        );
        let rows = Simulated::run(&four_gpus("", ""), &line).rows();
        assert_eq!(rows.len(), 2 * 2 * (4 + 1));
        assert!((0..rows.len()).all(|row| rows.cell(row, "status") == "ok"), "{handle}");
    }
}

/// GPUs whose links to the others share one port each way, narrower than two links.
fn with_ports() -> String {
    let mut file = format!(
        "schema = 1\ngpu_count = {GPUS}\nnvswitch = true\nevent_resolution_ns = 32\n\n[[gpu]]\n\
         memory_mib = 8192\nlaunch_ns = {LAUNCH_NS:?}\nnvlinks = 12\nnvlink_generation = 4\n\
         egress_gb_s = 400.0\ningress_gb_s = 320.0\n\n[[pair]]\n"
    );
    for issuer in ["ce_read", "ce_write", "sm_read", "sm_write"] {
        file.push_str(&format!("{issuer} = {{ gb_s = 250.0, latency_ns = 1000.0 }}\n"));
    }
    file
}

#[test]
fn what_goes_at_once_shares_what_the_model_shares() {
    const LINK: Rate = Rate::new(250.0, 1000.0);
    for (ranks, issuers) in [("1", "read,write"), ("4", "read,write")] {
        let line = format!(
            "p2p --ranks {ranks} --issuer {issuers} --operation copy --sizes 16M --time-limit 20ms \
             --pattern both-ways,one-to-all,all-to-one,bisection"
        );
        let run = Simulated::run(&with_ports(), &line);
        let rows = run.rows();
        assert_eq!(rows.len(), 2 * 2 * (6 + 4 + 4 + 1));
        for row in 0..rows.len() {
            let launch = if rows.cell(row, "engine") == "sm" { LAUNCH_NS } else { 0.0 };
            let alone_ns = launch + LINK.time_ns(16.0 * MIB);
            let (flows, operations) =
                (rows.number(row, "flows"), rows.number(row, "operations_per_sample"));
            // The operations of all flows pass the port one behind another, and the last one takes
            // its own time.
            let through = |port: f64| (flows * operations - 1.0) * 16.0 * MIB / port + alone_ns;
            let time_ns = match rows.cell(row, "pattern") {
                // Two directions, or disjoint pairs: no port has more than one flow each way.
                "both-ways" | "bisection" => operations * alone_ns,
                "one-to-all" => through(400.0),
                "all-to-one" => through(320.0),
                other => panic!("{other}"),
            };
            let total = rows.number(row, "bandwidth_gb_s_total");
            let expected = flows * operations * 16.0 * MIB / time_ns;
            let ranks = rows.cell(row, "source_rank");
            assert_near(total, expected, SHARE, &format!("{} rank {ranks}", what(&rows, row)));
        }
    }
}

#[test]
fn jitter_on_one_percent_shows_at_the_top_percentiles_only() {
    let jitter = "\n[[fault.jitter]]\nshare = 0.01\nextra_ns = 50000.0\n";
    let line = "p2p --gpus 0,1 --engine ce --operation copy --sizes 1M --effort thorough";
    let rows = Simulated::run(&four_gpus("", jitter), line).rows();
    assert_eq!(rows.len(), 4);
    for row in 0..4 {
        let time_ns = way(&rows, row).time_ns("ce", rows.cell(row, "issuer"), MIB);
        let (half, rare) =
            (rows.number(row, "latency_ns_p50"), rows.number(row, "latency_ns_p999"));
        assert_latency(half, time_ns, &what(&rows, row));
        assert_near(rare, time_ns + EVENT_NS + 50_000.0, 0.015, &what(&rows, row));
    }
}

#[test]
fn a_gpu_by_itself_and_its_host_memory_are_measured() {
    for ranks in [1, 4] {
        let line = format!("local --gpus 2 --ranks {ranks} --sizes 1M,64M --time-limit 20ms");
        assert_local(&Simulated::run(&four_gpus("", ""), &line).rows());
    }
}

fn assert_local(rows: &Rows) {
    for row in 0..rows.len() {
        let (source, target) = (rows.cell(row, "source_memory"), rows.cell(row, "target_memory"));
        if rows.cell(row, "operation") == "chase" {
            let expected = if source == "gpu" { LOAD_NS } else { HOST_LOAD_NS };
            assert_near(rows.number(row, "latency_ns_p50"), expected, 0.01, source);
            continue;
        }
        let is_kernel = rows.cell(row, "engine") == "sm";
        let rate = match (source, target, is_kernel) {
            ("gpu", "gpu", false) => LOCAL_CE,
            ("gpu", "gpu", true) => LOCAL_SM,
            ("host", "gpu", false) => FROM_HOST_CE,
            ("host", "gpu", true) => FROM_HOST_SM,
            ("gpu", "host", false) => TO_HOST_CE,
            ("gpu", "host", true) => TO_HOST_SM,
            other => panic!("{other:?}"),
        };
        let launch = if is_kernel { LAUNCH_NS } else { 0.0 };
        let time = |rate: Rate| launch + rate.time_ns(rows.number(row, "size_bytes"));
        if rows.cell(row, "pattern") == "both-ways" {
            // Each way has its own direction of the link; the slower one ends last.
            let (from, to) =
                if is_kernel { (FROM_HOST_SM, TO_HOST_SM) } else { (FROM_HOST_CE, TO_HOST_CE) };
            let total = 2.0 * rows.number(row, "size_bytes") / time(from).max(time(to));
            assert_near(rows.number(row, "bandwidth_gb_s_total"), total, SHARE, &what(rows, row));
        } else {
            assert_row(rows, row, time(rate));
        }
    }
    // Three ways and both at once, each by two engines at two sizes, and two chases.
    assert_eq!(rows.len(), 4 * 2 * 2 + 2);
}

#[test]
fn kernels_that_only_read_or_only_write_are_measured() {
    let line = "p2p --gpus 0,3 --operation read-only,write-only --sizes 3M --time-limit 20ms";
    let rows = Simulated::run(&four_gpus("", ""), line).rows();
    assert_eq!(rows.len(), 4);
    for row in 0..4 {
        let issuer = if rows.cell(row, "operation") == "read-only" { "read" } else { "write" };
        assert_eq!(rows.cell(row, "issuer"), issuer);
        assert_row(&rows, row, way(&rows, row).time_ns("sm", issuer, 3.0 * MIB));
    }
}

/// When the last of `chunks` has arrived that go through a ring of `slots`: each is copied in
/// when its slot is free, and out when it is there.
fn pipeline_ns(chunks: usize, slots: usize, into_ns: f64, out_ns: f64) -> f64 {
    let (mut filled, mut emptied) = (vec![0.0_f64; chunks], vec![0.0_f64; chunks]);
    for chunk in 0..chunks {
        let before = |times: &[f64]| if chunk > 0 { times[chunk - 1] } else { 0.0 };
        let free = if chunk >= slots { emptied[chunk - slots] } else { 0.0 };
        filled[chunk] = before(&filled).max(free) + into_ns;
        emptied[chunk] = before(&emptied).max(filled[chunk]) + out_ns;
    }
    emptied[chunks - 1]
}

#[test]
fn the_way_through_host_memory_is_measured_in_one_process_and_between_two() {
    for ranks in ["1", "2", "4"] {
        let line = format!(
            "shm --gpus 0,1 --ranks {ranks} --sizes 2M --slot-size 128K --pattern one-way \
             --time-limit 20ms --numa 0:0"
        );
        let rows = Simulated::run(&four_gpus("", ""), &line).rows();
        let of_gpus: Vec<usize> =
            (0..rows.len()).filter(|&row| !rows.cell(row, "source_gpu").is_empty()).collect();
        assert_eq!(of_gpus.len(), 4);
        for row in of_gpus {
            let is_kernel = rows.cell(row, "engine") == "sm";
            let (into, out) =
                if is_kernel { (TO_HOST_SM, FROM_HOST_SM) } else { (TO_HOST_CE, FROM_HOST_CE) };
            let launch = if is_kernel { LAUNCH_NS } else { 0.0 };
            let slots = rows.cell(row, "slots").parse().unwrap();
            let time = |rate: Rate| launch + rate.time_ns(MIB / 8.0);
            let one = pipeline_ns(16, slots, time(into), time(out));
            let latency = rows.number(row, "latency_ns_p50");
            assert_latency(latency, one, &format!("one transfer {}", what(&rows, row)));
            let operations = rows.number(row, "operations_per_sample");
            let chunks = 16 * rows.cell(row, "operations_per_sample").parse::<usize>().unwrap();
            let all = pipeline_ns(chunks, slots, time(into), time(out));
            let expected = operations * 2.0 * MIB / all;
            let found = rows.number(row, "bandwidth_gb_s");
            assert_near(found, expected, SHARE, &format!("in bulk {}", what(&rows, row)));
            assert_eq!(rows.cell(row, "slot_bytes"), "131072");
        }
    }
}

#[test]
fn an_instance_of_a_gpu_that_is_cut_up_has_an_instances_uuid() {
    for (name, kind) in
        [("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "MIG-"), ("NVIDIA A100-SXM4-80GB", "GPU-")]
    {
        let folder = tempfile::tempdir().unwrap();
        let machine = folder.path().join("machine.toml");
        std::fs::write(&machine, format!("schema = 1\n[[gpu]]\nname = \"{name}\"\n")).unwrap();
        let line = format!("topo --format json --simulate {}", machine.display());
        let survey: serde_json::Value = serde_json::from_slice(&run(g2g(), &line).stdout).unwrap();
        let uuid = survey["gpus"][0]["uuid"].as_str().unwrap();
        assert!(uuid.starts_with(kind), "{name}: {uuid}");
    }
}
