//! NCCL's ways to work beside the plain ones, on simulated machines whose answers are known.

use crate::common::simulation::{Simulated, assert_latency, assert_near};

/// Four GPUs behind an NVSwitch, each pair at 90 GB/s each way, but from GPU 1 to GPU 2 half.
fn machine(rest: &str) -> String {
    format!(
        "schema = 1\nname = \"four GPUs\"\ngpu_count = 4\nnvswitch = true\n\
         report = \"report.jsonl\"\n\n[[gpu]]\nmemory_mib = 8192\nnvlinks = 12\n\
         nvlink_generation = 4\ncompute_capability = [9, 0]\n\n[[pair]]\n\
         sm_write = {{ gb_s = 90.0 }}\n\n[[pair]]\nsource = 1\ntarget = 2\n\
         sm_write = {{ gb_s = 45.0 }}\n{rest}"
    )
}

/// What makes a run short.
const QUICK: &str = "--samples 6 --time-limit 5ms";

const BYTES: f64 = (1 << 20) as f64;

/// How long a message lasts by the model in docs/simulation.md: what begins it, its hop over
/// NVLink, and its data.
fn message_ns(gb_s: f64) -> f64 {
    8400.0 + 3400.0 + BYTES / gb_s
}

#[test]
fn messages_between_two_ranks_are_a_matrix() {
    for ranks in ["1", "4"] {
        let line = format!("nccl --operation sendrecv --pattern one-way --sizes 1M {QUICK}");
        let run = Simulated::run(&machine(""), &format!("{line} --ranks {ranks}"));
        let rows = run.rows();
        assert_eq!(rows.len(), 12);
        for row in 0..rows.len() {
            let ends = ["source_gpu", "target_gpu"].map(|name| rows.cell(row, name));
            assert_eq!((rows.cell(row, "status"), rows.cell(row, "flows")), ("ok", "1"));
            let gb_s = if ends == ["1", "2"] { 45.0 } else { 90.0 };
            let expected = BYTES / message_ns(gb_s);
            for column in ["bandwidth_gb_s", "bandwidth_gb_s_bus", "bandwidth_gb_s_total"] {
                assert_near(rows.number(row, column), expected, 0.005, &format!("{ends:?}"));
            }
            assert_eq!(rows.cell(row, "communicator_ranks"), "4");
        }
        let between = if ranks == "1" { "" } else { "; between ranks" };
        let title = format!("nccl sendrecv float, 1 MiB, GB/s{between} [SIMULATED]\n from / to");
        assert!(run.stdout.contains(&title), "{}", run.stdout);
        let mut indented = run.stdout.lines().filter(|line| line.starts_with(' '));
        let cells = indented.find(|line| line.trim_start().starts_with("GPU 1")).unwrap();
        let cells: Vec<&str> = cells.split_whitespace().collect();
        let cell = |place: usize| cells[place].parse::<f64>().unwrap();
        assert_eq!((cells.len(), cells[0], cells[1], cells[3]), (6, "GPU", "1", "-"));
        for (place, gb_s) in [(2, 44.71), (4, 29.87), (5, 44.71)] {
            assert_near(cell(place), gb_s, 0.005, &cells.join(" "));
        }
    }
}

#[test]
fn messages_cross_between_two_ranks() {
    let line =
        format!("nccl --operation sendrecv --pattern both-ways,neighbours --sizes 1M {QUICK}");
    let rows = Simulated::run(&machine(""), &format!("{line} --ranks 2")).rows();
    assert_eq!(rows.len(), 7);
    for row in 0..rows.len() {
        let (pattern, flows) = (rows.cell(row, "pattern"), rows.number(row, "flows"));
        let ends = ["source_gpu", "target_gpu"].map(|name| rows.cell(row, name));
        // The slower of the two ways ends it; the ring, of GPUs 0, 2, 1 and 3, does not have it.
        let is_slow = pattern == "both-ways" && (ends == ["1", "2"] || ends == ["2", "1"]);
        let each = BYTES / message_ns(if is_slow { 45.0 } else { 90.0 });
        let what = format!("{pattern} {ends:?}");
        assert_eq!(flows, if pattern == "neighbours" { 4.0 } else { 2.0 }, "{what}");
        assert_near(rows.number(row, "bandwidth_gb_s"), each, 0.005, &what);
        assert_near(rows.number(row, "bandwidth_gb_s_total"), flows * each, 0.005, &what);
    }
}

/// How often a process of `report` has called a function.
fn calls(report: &[serde_json::Value], name: &str) -> u64 {
    report.iter().map(|process| process["calls"][name].as_u64().unwrap_or(0)).sum()
}

#[test]
fn memory_of_both_kinds_is_registered_in_every_way_and_given_back() {
    for ranks in ["1", "4"] {
        let line = format!(
            "nccl --place out-of-place,in-place --operation all_gather,reduce_scatter \
             --buffer cuda,nccl -R 0,local,2 \
             --sizes 64K {QUICK} --ranks {ranks}"
        );
        let run = Simulated::run(&machine(""), &line);
        let rows = run.rows();
        let mut found: Vec<[&str; 2]> = (0..rows.len())
            .filter(|&row| rows.cell(row, "operation") == "all_gather")
            .map(|row| ["buffer", "registration"].map(|name| rows.cell(row, name)))
            .collect();
        found.dedup();
        let expected = [
            ["cuda", "none"],
            ["nccl", "none"],
            ["cuda", "local"],
            ["nccl", "local"],
            ["nccl", "symmetric"],
        ];
        assert_eq!((rows.len(), found), (20, expected.to_vec()));
        assert!((0..rows.len()).all(|row| rows.cell(row, "status") == "ok"));
        let report = run.report();
        // Each of two collectives has two buffers out of place, and one in place, on four GPUs.
        let buffers = 2 * (2 + 1) * 4;
        for (name, count) in [
            ("ncclCommRegister", 2 * buffers),
            ("ncclCommDeregister", 2 * buffers),
            ("ncclCommWindowRegister", buffers),
            ("ncclCommWindowDeregister", buffers),
            ("ncclMemAlloc", 3 * buffers),
            ("ncclMemFree", 3 * buffers),
        ] {
            assert_eq!(calls(&report, name), count, "{name}");
        }
        let words = "in memory of NCCL registered symmetric";
        assert!(run.stdout.contains(words), "{}", run.stdout);
    }
}

#[test]
fn windows_that_nccl_does_not_make_are_no_windows_in_a_row() {
    let line = format!("nccl --operation all_reduce -R 2 --sizes 64K {QUICK}");
    for ranks in ["1", "2"] {
        let line = format!("{line} --nccl-env NCCL_WIN_ENABLE=0 --ranks {ranks}");
        let run = Simulated::run(&machine(""), &line);
        assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
        let rows = run.rows_whatever_happened();
        let reason = rows.cell(0, "reason");
        assert_eq!((rows.cell(0, "status"), rows.cell(0, "bandwidth_gb_s")), ("failed", ""));
        assert!(reason.contains("leave out --registration symmetric"), "{reason}");
    }
}

#[test]
fn a_rank_that_never_comes_to_what_all_do_together_is_named_within_the_deadline() {
    for (name, flag, action) in [
        ("ncclCommWindowRegister", "-R 2", "register a buffer"),
        ("ncclCommSplit", "--split MOD:2", "divide a communicator"),
    ] {
        let fault = format!("\n[[fault.rank]]\nrank = 1\nname = \"{name}\"\nwhat = \"absent\"\n");
        let line = format!(
            "nccl --operation all_reduce --place out-of-place {flag} --sizes 64K {QUICK} --timeout 2s"
        );
        let run = Simulated::run(&machine(&fault), &format!("{line} --ranks 4"));
        let said = format!("{name}: {}{}", run.stdout, run.stderr);
        let rows = run.rows_whatever_happened();
        assert_eq!((run.code, rows.len(), rows.cell(0, "status")), (1, 1, "failed"), "{said}");
        let reason = rows.cell(0, "reason");
        assert!(reason.starts_with(&format!("cannot {action}")), "{said}");
        assert!(reason.contains("not done within 2 s; rank 1 has not come to it ("), "{said}");

        // One process alone hangs itself.
        let run = Simulated::run(&machine(&fault), &line);
        let said = format!("{name}: {}{}", run.stdout, run.stderr);
        assert_eq!((run.code, run.rows_whatever_happened().len()), (1, 0), "{said}");
        assert!(run.stderr.contains("within 2.5 s: is a rank missing?"), "{said}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused_in_one_sentence() {
    for (line, part) in [
        ("nccl -R 2 --buffer cuda", "give --buffer nccl"),
        ("nccl --split MOD:3", "4 GPUs would be in communicators of 1 and 2 ranks"),
        ("nccl --split 10", "such as 0x7, which is AND:0x7"),
        ("nccl --split DIV:0", "to divide by it is above 0"),
        ("nccl --split DIV:2 --root 2", "--root 2"),
        ("nccl --split DIV:2 --pattern one-way", "leave out --split"),
        ("nccl -G 1 -z 1", "leave out one"),
        ("nccl -G 65", "65 is not in 0..=64"),
        ("nccl -R 3", "[possible values: none, local, symmetric]"),
    ] {
        let run = Simulated::run(&machine(""), line);
        assert_eq!(run.code, 2, "{line}: {}{}", run.stdout, run.stderr);
        assert!(run.stderr.starts_with("error: ") && run.stderr.contains(part), "{}", run.stderr);
        assert_eq!(run.stderr.trim_end().lines().count(), 1, "{}", run.stderr);
        assert!(!run.folder.path().join("run").exists(), "{line}");
    }
}

/// How long all-reduce of so much among two ranks lasts by the model: what begins it, two hops over
/// NVLink, and all of the data over each link.
fn all_reduce_of_two_ns(gb_s: f64) -> f64 {
    8400.0 + 2.0 * 3400.0 + BYTES / gb_s
}

#[test]
fn communicators_of_parts_work_at_the_same_time_and_the_slowest_counts() {
    // GPU 1 sends to GPU 2 at half the rate: together they are slow, and so is the row.
    let line = format!(
        "nccl --operation all_reduce --place out-of-place --sizes 1M {QUICK} \
         --nccl-env NCCL_ALGO=Ring --nccl-env NCCL_PROTO=Simple"
    );
    for (split, flags, gb_s) in [
        ("MOD:2", "", 90.0),
        ("div2", "", 90.0),
        ("|0b1", "--gpus 0,3,1,2", 45.0),
        // GPUs 0 and 2 are of the first process, and are counted first.
        ("/2", "--ranks 2", 90.0),
        ("%2", "--ranks 2", 90.0),
        ("DIV:2", "--ranks 4", 90.0),
    ] {
        let line = format!("{line} --split {split} {flags}");
        let rows = Simulated::run(&machine(""), &line).rows();
        let what = format!("{split} {flags}");
        assert_eq!((rows.len(), rows.cell(0, "status")), (1, "ok"), "{what}");
        assert_eq!(rows.cell(0, "communicator_ranks"), "2", "{what}");
        let found = rows.number(0, "bandwidth_gb_s");
        assert_near(found, BYTES / all_reduce_of_two_ns(gb_s), 0.005, &what);
        assert_near(rows.number(0, "bandwidth_gb_s_bus"), found, 1e-9, &what);
    }
}

#[test]
fn parts_are_verified_in_every_operation_and_place() {
    let line = "nccl --place out-of-place,in-place --sizes 4K --split MOD:2 --root all \
                --samples 1 --time-limit 1ms --ranks 2";
    let run = Simulated::run(&machine(""), line);
    let rows = run.rows();
    // Four collectives with a root, of which there are two, and five without; two of nine are not
    // in place.
    assert_eq!(rows.len(), 2 * (4 * 2 + 3) + 2);
    for row in 0..rows.len() {
        let what = rows.cell(row, "operation");
        assert_eq!((rows.cell(row, "status"), rows.cell(row, "split")), ("ok", "MOD:2"), "{what}");
    }
    let calls = calls(&run.report(), "ncclCommSplit");
    assert_eq!(calls, 4, "each rank divides once, and its parts are kept");
    assert!(run.stdout.contains(" split MOD:2 "), "{}", run.stdout);
}

#[test]
fn a_wrong_element_in_a_part_is_of_a_rank_of_all() {
    let fault = "\n[[fault.rank]]\nrank = 1\nname = \"ncclAllGather\"\nwhat = \"wrong\"\n\
                 element = 5\nalways = true\n";
    let line = format!("nccl --operation all_gather --split DIV:2 --sizes 64K {QUICK}");
    let run = Simulated::run(&machine(fault), &line);
    assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
    let rows = run.rows_whatever_happened();
    // The second of each part, of which the first part's is seen first.
    assert_eq!((rows.cell(0, "status"), rows.cell(0, "corrupt_rank")), ("corrupt", "1"));
}

#[test]
fn operations_in_a_graph_last_as_long_and_are_launched_so_often() {
    let line = format!(
        "nccl --operation all_reduce,broadcast --place out-of-place --sizes 1M {QUICK} \
         --nccl-env NCCL_ALGO=Ring --nccl-env NCCL_PROTO=Simple"
    );
    for (flags, launches) in [("-G 1", 1.0), ("--graph 3 --ranks 4", 3.0)] {
        let run = Simulated::run(&machine(""), &format!("{line} {flags}"));
        let rows = run.rows();
        assert_eq!(rows.len(), 2);
        for (row, (hops, share)) in [(6.0, 1.5), (3.0, 1.0)].into_iter().enumerate() {
            let what = format!("{} {flags}", rows.cell(row, "operation"));
            assert_eq!(rows.cell(row, "status"), "ok", "{what}");
            assert_eq!(rows.number(row, "graph"), launches, "{what}");
            // A sample of 1 ms has several operations, which are captured as many times less.
            let operations = rows.number(row, "operations_per_sample");
            assert!(operations > launches && operations % launches == 0.0, "{what}: {operations}");
            // The ring avoids the slow way from GPU 1 to GPU 2.
            let each = 8400.0 + hops * 3400.0 + share * BYTES / 90.0;
            assert_near(rows.number(row, "bandwidth_gb_s"), BYTES / each, 0.005, &what);
            assert_latency(rows.number(row, "latency_ns_p50"), each, &what);
        }
        let report = run.report();
        let [begun, launched, destroyed] =
            ["cuStreamBeginCapture", "cuGraphLaunch", "cuGraphExecDestroy"]
                .map(|name| calls(&report, name));
        assert!(begun > 0 && launched >= begun && destroyed == begun, "{begun} {launched}");
        for process in &report {
            let live = process["live"].as_object().unwrap();
            assert!(live.values().all(|count| count == 0), "not given back: {live:?}");
        }
    }
}

#[test]
fn every_operation_in_a_graph_is_verified() {
    let line = "nccl --place out-of-place,in-place --sizes 4K -o sum,mulsum -G 2 --samples 1 \
                --time-limit 1ms --ranks 2";
    let rows = Simulated::run(&machine(""), line).rows();
    // Three reductions of two kinds and four others in place and not, two only not.
    assert_eq!(rows.len(), 2 * (3 * 2 + 4) + 2);
    assert!((0..rows.len()).all(|row| rows.cell(row, "status") == "ok"));
    // As many as nccl-tests would have: three groups of five, twice.
    let line = "nccl --operation all_gather --place out-of-place,in-place --sizes 4K -n 3 -m 5 -w 7 \
                -G 2 --samples 2 --time-limit 1ms --ranks 2";
    let rows = Simulated::run(&machine(""), line).rows();
    let each = |row| (rows.cell(row, "status"), rows.cell(row, "operations_per_sample"));
    assert_eq!((each(0), each(1)), (("ok", "30"), ("ok", "30")));
    // More than wait behind a hold.
    let line = "nccl --operation all_reduce --sizes 4K -n 90 -G 3 --samples 2 --time-limit 1ms";
    let rows = Simulated::run(&machine(""), line).rows();
    assert_eq!((rows.cell(0, "status"), rows.cell(0, "operations_per_sample")), ("ok", "270"));
    let line = "nccl --operation sendrecv --pattern one-way --sizes 4K -G 1 -R 2 --samples 1 \
                --time-limit 1ms";
    let rows = Simulated::run(&machine(""), line).rows();
    assert!(rows.len() == 12 && (0..12).all(|row| rows.cell(row, "status") == "ok"));
}

#[test]
fn what_goes_wrong_in_a_graph_is_found() {
    let line = "nccl --operation all_reduce,all_gather --place out-of-place --sizes 64K -G 4 \
                --samples 6 --time-limit 5ms --timeout 2s --ranks 4";
    let fault = |rest: &str| {
        let name = "\n[[fault.rank]]\nrank = 1\nname = \"ncclAllGather\"\n";
        Simulated::run(&machine(&format!("{name}{rest}")), line)
    };
    let run = fault("what = \"wrong\"\nafter = 30\nalways = true\n");
    let rows = run.rows_whatever_happened();
    assert_eq!((run.code, rows.cell(0, "status")), (1, "ok"), "{}{}", run.stdout, run.stderr);
    assert_eq!((rows.cell(1, "status"), rows.cell(1, "corrupt_rank")), ("corrupt", "1"));
    let run = fault("what = \"absent\"\nafter = 10\n");
    let rows = run.rows_whatever_happened();
    let said = format!("{}{}", run.stdout, run.stderr);
    assert_eq!((run.code, rows.cell(0, "status"), rows.cell(1, "status")), (1, "ok", "failed"));
    assert!(rows.cell(1, "reason").contains("rank 1 has not come to it ("), "{said}");
    let run = fault("what = \"refused\"\nafter = 10\ncode = 3\nreason = \"no\"\n");
    let rows = run.rows_whatever_happened();
    assert_eq!((run.code, rows.cell(0, "status"), rows.cell(1, "status")), (1, "ok", "failed"));
    let reason = rows.cell(1, "reason");
    assert!(reason.contains("cuGraphLaunch") && reason.contains("719"), "{reason}");
}

#[test]
fn communicators_end_in_order_unless_something_went_wrong() {
    let line = format!("nccl --operation all_gather,all_reduce --sizes 64K {QUICK} --timeout 2s");
    // Parts come beside those of all ranks, and are made once for all cases.
    for (flags, ended) in [("", 4), ("--ranks 2 --split DIV:2 -R 2 -G 1", 8)] {
        let run = Simulated::run(&machine(""), &format!("{line} {flags}"));
        assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
        let report = run.report();
        let found = ["ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort"];
        assert_eq!(found.map(|name| calls(&report, name)), [ended, ended, 0], "{flags}");
    }
    let fault = "\n[[fault.rank]]\nrank = 1\nname = \"ncclAllGather\"\nwhat = \"asynchronous\"\n\
                 code = 3\nafter = 5\n";
    let run = Simulated::run(&machine(fault), &format!("{line} --ranks 4"));
    assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
    let rows = run.rows_whatever_happened();
    let last = rows.len() - 1;
    assert_eq!((rows.cell(0, "status"), rows.cell(last, "status")), ("failed", "ok"));
    let report = run.report();
    // All ranks make a new one for the case behind it, which ends well.
    let found = ["ncclCommAbort", "ncclCommDestroy"].map(|name| calls(&report, name));
    assert!(found[0] >= 4 && found[1] == 4, "{found:?}");
}

#[test]
fn ranks_share_a_gpu_where_nccl_is_told_to_let_them() {
    let line = "nccl --gpus 0 --ranks 4 --operation all_reduce,alltoall,sendrecv --sizes 64K \
                --place out-of-place --samples 2 --time-limit 2ms";
    let shared = format!("{line} --nccl-env NCCL_MULTI_RANK_GPU_ENABLE=1");
    let rows = Simulated::run(&machine(""), &shared).rows();
    assert_eq!(rows.len(), 3);
    for row in 0..3 {
        assert_eq!(rows.cell(row, "status"), "ok");
        assert_eq!(rows.cell(row, "communicator_ranks"), "4");
        assert_eq!(rows.cell(row, "path_verdict"), "proven");
        assert_eq!(rows.cell(row, "verdict"), "unknown");
        let reason = rows.cell(row, "verdict_reason");
        assert!(reason.starts_with("ranks share a GPU: "), "{reason}");
    }
    let rows = Simulated::run(&machine(""), line).rows();
    assert!((0..rows.len()).all(|row| rows.cell(row, "communicator_ranks") == "1"));
    // What one of them needs is there, what all need is not.
    let small = machine("").replace("8192", "256");
    let rows = Simulated::run(&small, &shared.replace("64K", "32M")).rows();
    for row in 0..rows.len() {
        assert_eq!(rows.cell(row, "status"), "skipped");
        let reason = rows.cell(row, "reason");
        assert!(reason.starts_with("the buffers of 4 ranks need 256.0 MiB of GPU 0"), "{reason}");
    }
}
