//! NCCL's collectives from outside, on simulated machines whose answers are known.

use crate::common::{
    Rows,
    simulation::{EVENT_NS, Simulated, assert_latency, assert_near},
};

/// Four GPUs behind an NVSwitch, each pair at 90 GB/s each way.
fn machine(rest: &str) -> String {
    format!(
        "schema = 1\nname = \"four GPUs\"\ngpu_count = 4\nnvswitch = true\n\
         report = \"report.jsonl\"\n\n[[gpu]]\nmemory_mib = 8192\nnvlinks = 12\n\
         nvlink_generation = 4\ncompute_capability = [9, 0]\n\n[[pair]]\n\
         sm_write = {{ gb_s = 90.0 }}\n{rest}"
    )
}

/// One ring of the simplest protocol, whose times are easy to work out.
const RING: &str = "--nccl-env NCCL_ALGO=Ring --nccl-env NCCL_PROTO=Simple";

const BYTES: f64 = (16 << 20) as f64;

/// Four ranks' times by the model in docs/simulation.md: what begins a collective of the protocol
/// Simple, its hops over NVLink, and the data that goes through each link.
fn ring_ns(operation: &str) -> f64 {
    let (hops, factor) = match operation {
        "all_reduce" => (6.0, 1.5),
        "all_gather" | "reduce_scatter" => (3.0, 0.75),
        _ => (3.0, 1.0),
    };
    8400.0 + hops * 3400.0 + factor * BYTES / 90.0
}

/// The bus bandwidth over the algorithm bandwidth, for four ranks.
fn bus_factor(operation: &str) -> f64 {
    match operation {
        "all_reduce" => 1.5,
        "broadcast" | "reduce" | "sendrecv" => 1.0,
        _ => 0.75,
    }
}

fn assert_known_answers(rows: &Rows) {
    assert_eq!(rows.len(), 10);
    for row in 0..rows.len() {
        let operation = rows.cell(row, "operation");
        let what = format!("{operation} {}", rows.cell(row, "in_place"));
        assert_eq!(rows.cell(row, "status"), "ok", "{what}");
        assert_eq!(
            (rows.cell(row, "simulated"), rows.cell(row, "communicator_ranks")),
            ("true", "4")
        );
        let algorithm = rows.number(row, "bandwidth_gb_s");
        // A reduction in place is a sample of its own, with the event at its end.
        let events_ns = EVENT_NS / rows.number(row, "operations_per_sample");
        assert_near(algorithm, BYTES / (ring_ns(operation) + events_ns), 0.005, &what);
        let bus = rows.number(row, "bandwidth_gb_s_bus");
        assert_near(bus, bus_factor(operation) * algorithm, 1e-9, &what);
        assert_latency(rows.number(row, "latency_ns_p50"), ring_ns(operation), &what);
    }
}

const COLLECTIVES: &str = "nccl --place out-of-place,in-place --operation \
                           all_reduce,all_gather,reduce_scatter,broadcast,reduce \
                           --sizes 16M --samples 6 --time-limit 10ms";

#[test]
fn one_process_finds_what_the_model_says() {
    let run = Simulated::run(&machine(""), &format!("{COLLECTIVES} {RING}"));
    assert_known_answers(&run.rows());
    for process in run.report() {
        let live = process["live"].as_object().unwrap();
        assert!(live.values().all(|count| count == 0), "not given back: {live:?}");
    }
}

#[test]
fn a_rank_for_each_gpu_finds_the_same() {
    let run = Simulated::run(&machine(""), &format!("{COLLECTIVES} {RING} --ranks 4"));
    assert_known_answers(&run.rows());
}

#[test]
fn every_type_and_reduction_is_verified() {
    // Of three ranks a mean is rounded.
    let line = "nccl --gpus 0-2 --operation reduce_scatter -d all -o all --place out-of-place \
                --sizes 4K --samples 1 --time-limit 1ms";
    let rows = Simulated::run(&machine(""), line).rows();
    assert_eq!(rows.len(), 12 * 6);
    for row in 0..rows.len() {
        let [kind, reduction] = ["data_type", "reduction"].map(|name| rows.cell(row, name));
        assert_eq!(rows.cell(row, "status"), "ok", "{kind} {reduction}");
    }
}

#[test]
fn what_only_moves_is_verified_for_every_root() {
    let line = "nccl --place out-of-place,in-place --operation \
                broadcast,alltoall,gather,scatter,sendrecv --root all \
                --sizes 1000,64K --samples 1 --time-limit 1ms --ranks 2";
    let rows = Simulated::run(&machine(""), line).rows();
    // In place and not, for each root; to all, and to the next one, out of place only.
    assert_eq!(rows.len(), 2 * (3 * 4 * 2 + 2));
    assert!((0..rows.len()).all(|row| rows.cell(row, "status") == "ok"));
    // 1000 bytes are 250 floats, of which each of four ranks gives 60 in whole 16 bytes.
    let gather = (0..rows.len()).find(|&row| rows.cell(row, "operation") == "gather").unwrap();
    assert_eq!(rows.cell(gather, "size_bytes"), "960");
}

#[test]
fn a_wrong_element_gives_no_number_and_is_named() {
    let fault = "\n[[fault.rank]]\nrank = 2\nname = \"ncclAllReduce\"\nwhat = \"wrong\"\n\
                 element = 1000\nafter = 3\nalways = true\n";
    let line = "nccl --operation all_reduce,all_gather --place out-of-place --sizes 64K \
                --samples 6 --time-limit 5ms";
    let run = Simulated::run(&machine(fault), line);
    assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
    let rows = run.rows_whatever_happened();
    assert_eq!((rows.len(), rows.cell(0, "status"), rows.cell(1, "status")), (2, "corrupt", "ok"));
    assert_eq!((rows.cell(0, "corrupt_rank"), rows.cell(0, "bandwidth_gb_s")), ("2", ""));
    let offset: u64 = rows.cell(0, "corrupt_offset_bytes").parse().unwrap();
    assert_eq!((offset / 4, rows.cell(0, "corrupt_bytes")), (1000, "4"));
    assert!(rows.cell(0, "reason").contains("element 1000"), "{}", rows.cell(0, "reason"));
}

#[test]
fn a_rank_that_never_comes_is_named_within_the_deadline_and_the_rows_before_it_stay() {
    for (name, action, good) in
        [("ncclCommInitRank", "make a communicator", 0), ("ncclAllGather", "finish all_gather", 1)]
    {
        let fault = format!("\n[[fault.rank]]\nrank = 1\nname = \"{name}\"\nwhat = \"absent\"\n");
        let line = "nccl --operation all_reduce,all_gather --place out-of-place --sizes 64K \
                    --samples 6 --time-limit 5ms --timeout 2s";
        let run = Simulated::run(&machine(&fault), &format!("{line} --ranks 4"));
        let said = format!("{name}: {}{}", run.stdout, run.stderr);
        assert_eq!(run.code, 1, "{said}");
        let rows = run.rows_whatever_happened();
        assert!((0..good).all(|row| rows.cell(row, "status") == "ok"), "{said}");
        assert_eq!(rows.cell(good, "status"), "failed", "{said}");
        let reason = rows.cell(good, "reason");
        assert!(reason.starts_with(&format!("cannot {action}")), "{said}");
        assert!(reason.contains("not done within 2 s; rank 1 has not come to it ("), "{said}");

        // One process alone hangs itself, and knows in which call.
        let run = Simulated::run(&machine(&fault), line);
        let said = format!("{name}: {}{}", run.stdout, run.stderr);
        assert_eq!(run.code, 1, "{said}");
        assert!(run.stderr.contains("error: rank 0 "), "{said}");
        let rows = run.rows_whatever_happened();
        assert_eq!(rows.len(), good, "{said}");
        assert!((0..good).all(|row| rows.cell(row, "status") == "ok"), "{said}");
    }
}

/// The lines of nccl-tests 2.19.6 above its results, but for the spaces at their ends.
const HEADER: [&str; 3] = [
    "#                                                              out-of-place                       in-place",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
];

#[test]
fn what_reads_nccl_tests_reads_this() {
    let line = format!(
        "nccl --operation all_reduce,alltoall,reduce -b 1K -e 64K -f 8 -n 5 -w 1 -c 0 -o sum,max \
         --root all --samples 2 --time-limit 1ms --format nccl-tests {RING}"
    );
    let run = Simulated::run(&machine(""), &line);
    let rows = run.rows();
    let text = &run.stdout;
    for program in ["all_reduce_perf", "alltoall_perf", "reduce_perf"] {
        assert_eq!(text.matches(&format!("# Collective test starting: {program}\n")).count(), 1);
        assert_eq!(text.matches(&format!("# Collective test concluded: {program}\n")).count(), 1);
    }
    let about = "# nThread 1 nGpus 4 minBytes 1024 maxBytes 65536 step: 8(factor) warmup iters: 1 \
                 iters: 5 agg iters: 1 validation: 1 graph: 0 unalign: 0\n";
    assert_eq!(text.matches(about).count(), 3, "{text}");
    assert_eq!(text.matches("#  Rank  3 Group  0 Pid ").count(), 3, "{text}");
    for header in HEADER {
        assert_eq!(text.lines().filter(|line| line.trim_end() == header).count(), 3, "{text}");
    }
    let lines: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let mut again = format!(
                "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}",
                cells[0], cells[1], cells[2], cells[3], cells[4]
            );
            for half in cells[5..].chunks(4) {
                again +=
                    &format!("  {:>7}  {:>6}  {:>6}  {:>6}", half[0], half[1], half[2], half[3]);
            }
            assert_eq!(line, again);
            cells
        })
        .collect();
    // Three sizes of two reductions, of none, and of two for each of four roots.
    assert_eq!(lines.len(), 3 * (2 + 1 + 8));
    let mut busbw = Vec::new();
    for cells in &lines {
        let find = |in_place: &str| {
            (0..rows.len()).find(|&row| {
                let is = |column, cell: &str| rows.cell(row, column) == cell;
                is("size_bytes", cells[0])
                    && is("reduction", if cells[3] == "none" { "" } else { cells[3] })
                    && is("root", if cells[4] == "-1" { "" } else { cells[4] })
                    && is("in_place", in_place)
            })
        };
        for (half, in_place) in cells[5..].chunks(4).zip(["false", "true"]) {
            let Some(row) = find(in_place) else {
                assert_eq!((half, in_place), (&["N/A"; 4][..], "true"), "{cells:?}");
                continue;
            };
            let algbw = rows.number(row, "bandwidth_gb_s");
            let time_us = rows.number(row, "size_bytes") / algbw / 1e3;
            assert_eq!(half[0], format!("{time_us:.2}"));
            assert_eq!(half[1], format!("{algbw:.2}"));
            assert_eq!(half[2], format!("{:.2}", rows.number(row, "bandwidth_gb_s_bus")));
            assert_eq!(half[3], "0");
            assert_eq!(
                rows.cell(row, "operations_per_sample"),
                if in_place == "true" { "1" } else { "5" }
            );
            busbw.push((
                rows.cell(row, "operation").to_owned(),
                rows.number(row, "bandwidth_gb_s_bus"),
            ));
        }
        // Elements that NCCL is called with.
        let size: u64 = cells[0].parse().unwrap();
        let share = if cells[3] == "none" { 4 } else { 1 };
        assert_eq!(cells[1], (size / 4 / share).to_string());
    }
    let of_all_reduce: Vec<f64> =
        busbw.iter().filter(|(name, _)| name == "all_reduce").map(|(_, gb_s)| *gb_s).collect();
    let mean = of_all_reduce.iter().sum::<f64>() / of_all_reduce.len() as f64;
    let told =
        text.lines().find_map(|line| line.strip_prefix("# Avg bus bandwidth    : ")).unwrap();
    assert!((told.trim_end().parse::<f64>().unwrap() - mean).abs() < 1e-5 * mean, "{told} {mean}");
    assert_eq!(text.matches("# Out of bounds values : 0 OK\n").count(), 3);
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    for (line, part) in [
        ("nccl --root 4", "--root 4: there are 4 GPUs"),
        ("nccl --data-type int7", "there are int8, uint8"),
        ("nccl --reduction med", "there are sum, prod"),
        ("nccl --root first", "the number of a rank"),
        ("nccl -b 8 -e 4", "--minbytes 8 B is more than --maxbytes 4 B"),
        ("nccl -b 8 -e 1G -i 8", "more than 10000 sizes"),
        ("nccl -b 8 --sizes 8", "cannot be used with"),
        ("nccl -f 1", "is not in 2.."),
        ("nccl -z 2", "is not in 0..=1"),
        ("nccl -m 1025", "is not in 1..=1024"),
    ] {
        let run = Simulated::run(&machine(""), line);
        assert_eq!(run.code, 2, "{line}: {}{}", run.stdout, run.stderr);
        assert!(run.stderr.starts_with("error: ") && run.stderr.contains(part), "{}", run.stderr);
        assert_eq!(run.stderr.trim_end().lines().count(), 1, "{}", run.stderr);
        assert!(!run.folder.path().join("run").exists(), "{line}");
    }
}
