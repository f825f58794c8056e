use super::*;
use crate::{
    plan::{Collective, DataType, Engine, Issuer, Operation, Pattern, Reduction, TransportKind},
    record::{MemoryKind, Status},
    units::Bytes,
};

/// What `read` makes of `bytes`.
fn import(bytes: &[u8]) -> (Result<Imported, Error>, Vec<Row>) {
    let mut rows = Vec::new();
    let imported = read(bytes, &mut |row| rows.push(row));
    (imported, rows)
}

/// The same of a file of `tests/fixtures/import`, which has rows.
macro_rules! fixture {
    ($name:literal) => {{
        let bytes = include_bytes!(concat!("../../../tests/fixtures/import/", $name));
        let (imported, rows) = import(bytes);
        (imported.unwrap(), rows)
    }};
}

/// Whether two rates differ by what rounding leaves of them.
fn is_near(found: Option<f64>, expected: f64) -> bool {
    found.is_some_and(|found| (found / expected - 1.0).abs() < 1e-3)
}

#[test]
fn both_places_of_a_line_of_nccl_tests_are_rows() {
    let (about, rows) = fixture!("nccl-tests-2.19.6.txt");
    assert_eq!(about.tool, "nccl-tests");
    assert_eq!(about.version.as_deref(), Some("2.19.6"));
    assert_eq!(about.library.as_deref(), Some("NCCL 2.30.3"));
    assert_eq!((about.rows, about.left_out, rows.len()), (10, 0, 10));
    let first = &rows[0];
    assert_eq!(first.case, 1);
    assert_eq!(first.transport, TransportKind::Nccl);
    assert_eq!(first.operation, Some(Operation::Collective(Collective::AllReduce)));
    assert_eq!(first.data_type, Some(DataType::Float));
    assert_eq!(first.reduction, Some(Reduction::Sum));
    assert_eq!((first.root, first.in_place), (None, Some(false)));
    assert_eq!((first.communicator_ranks, first.operations_per_group), (Some(8), Some(1)));
    assert_eq!((first.graph, first.blocking), (Some(0), Some(false)));
    assert_eq!((first.status, first.flags.as_str()), (Status::Ok, ""));
    assert_eq!(rows[1].in_place, Some(true));
    // 8 bytes in 22.31 µs are 0.00 GB/s in its columns.
    assert!(is_near(first.bandwidth_gb_s, 8.0 / 22.31 / 1e3), "{:?}", first.bandwidth_gb_s);
    assert!(is_near(first.bandwidth_gb_s_bus, 1.75 * 8.0 / 22.31 / 1e3));
    let large = &rows[6];
    assert_eq!(large.size_bytes, Some(Bytes::mib(1024)));
    assert!(is_near(large.bandwidth_gb_s, 224.15), "{:?}", large.bandwidth_gb_s);
    assert!(is_near(large.bandwidth_gb_s_bus, 392.26));
    assert_eq!(large.latency_ns_p50, None, "its time is no latency");
}

#[test]
fn wrong_elements_make_a_row_corrupt_and_none_counted_make_it_unverified() {
    let (about, rows) = fixture!("nccl-tests-2.19.6.txt");
    let corrupt = &rows[5];
    assert_eq!(corrupt.status, Status::Corrupt);
    assert_eq!(corrupt.reason, "nccl-tests counted 12 wrong elements");
    assert_eq!((corrupt.bandwidth_gb_s, corrupt.bandwidth_gb_s_bus), (None, None));
    assert_eq!(rows.iter().filter(|row| row.status == Status::Corrupt).count(), 1);
    assert_eq!(about.notes, ["nccl-tests found wrong data: `1 FAILED`"]);
    // A second program in the same file; alltoall in place is not checked.
    let [.., out_of_place, in_place] = &rows[..] else { panic!() };
    assert_eq!(in_place.operation, Some(Operation::Collective(Collective::AllToAll)));
    assert_eq!(in_place.reduction, None);
    assert_eq!((out_of_place.flags.as_str(), in_place.flags.as_str()), ("", "unverified"));
}

#[test]
fn the_times_of_single_operations_are_latencies() {
    let (about, rows) = fixture!("nccl-tests-2.19.6-per-iteration.txt");
    assert_eq!((about.left_out, rows.len()), (0, 4));
    let row = &rows[0];
    assert_eq!(row.operation, Some(Operation::Collective(Collective::ReduceScatter)));
    assert_eq!((row.operations_per_group, row.graph), (Some(4), Some(3)));
    assert_eq!((row.blocking, row.flags.as_str()), (Some(true), "barriers_timed"));
    assert_eq!((row.latency_ns_min, row.latency_ns_p50), (Some(18_870), None));
    assert_eq!((row.latency_ns_p99, row.latency_ns_max), (Some(27_260), Some(29_360)));
    assert!(is_near(row.bandwidth_gb_s_bus, 25.0));
}

#[test]
fn a_file_that_was_cut_off_keeps_its_whole_rows_and_says_which_are_not() {
    let (about, rows) = fixture!("nccl-tests-2.16.9-cut-off.txt");
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].operation, Some(Operation::Collective(Collective::Broadcast)));
    assert_eq!((rows[0].root, rows[0].reduction), (Some(1), None));
    assert_eq!(rows[0].communicator_ranks, Some(2), "two groups of two");
    assert_eq!(rows[0].flags, "unverified");
    assert_eq!(about.left_out, 3);
    assert!(about.reasons[0].starts_with("line 15: "), "{:?}", about.reasons);
    assert!(about.reasons[2].contains("has 7 columns of 13"), "{:?}", about.reasons);
    let remarks = about.remarks();
    assert_eq!(remarks.len(), 2, "{remarks:?}");
    assert!(remarks[0].contains("it was cut off"));
    assert!(remarks[1].starts_with("3 results of nccl-tests are left out: line 15: "));
}

#[test]
fn older_versions_have_fewer_columns_and_do_not_name_their_program() {
    let (about, rows) = fixture!("nccl-tests-2.9.0.txt");
    assert_eq!((about.version, about.left_out), (None, 0));
    assert_eq!(rows.len(), 4);
    assert_eq!((rows[0].operation, rows[0].reduction), (None, None));
    assert_eq!(rows[0].communicator_ranks, Some(2));
    assert!(is_near(rows[0].bandwidth_gb_s, 80.0));
    assert!(is_near(rows[0].bandwidth_gb_s_bus, 40.0));
    // Where data differs, it is not said by how much it may.
    assert_eq!((rows[0].flags.as_str(), rows[2].flags.as_str()), ("", "unverified"));
}

#[test]
fn json_of_nccl_tests_says_the_same_with_more_digits() {
    let (about, rows) = fixture!("nccl-tests-2.19.6.json");
    assert_eq!((about.tool, about.library.as_deref()), ("nccl-tests", Some("NCCL 2.30.3")));
    assert_eq!((about.left_out, about.notes.len(), rows.len()), (0, 0, 6));
    let row = &rows[0];
    assert_eq!(row.operation, Some(Operation::Collective(Collective::AllReduce)));
    assert_eq!(row.communicator_ranks, Some(8), "two processes of four GPUs");
    assert_eq!((row.root, row.blocking), (None, Some(false)));
    assert!(is_near(row.bandwidth_gb_s, 8.0 / 20.125 / 1e3));
    assert_eq!((row.latency_ns_min, row.latency_ns_p50), (Some(18_113), Some(19_723)));
    assert_eq!((rows[5].status, rows[5].bandwidth_gb_s), (Status::Corrupt, None));
    // The environment in the file stays there.
    assert!(rows.iter().all(|row| !format!("{row:?}").contains("planted")));
}

#[test]
fn json_that_was_cut_off_is_read_up_to_there() {
    let bytes = include_bytes!("../../../tests/fixtures/import/nccl-tests-2.19.6.json");
    let end = bytes.len() - 900;
    let (about, rows) = import(&bytes[..end]);
    let about = about.unwrap();
    assert_eq!(rows.len(), 4);
    assert_eq!(about.notes.len(), 1);
    assert!(about.notes[0].starts_with("the file was cut off: EOF while parsing"), "{about:?}");
}

#[test]
fn a_cell_of_nvbandwidth_is_the_flow_that_its_code_measures() {
    let (about, rows) = fixture!("nvbandwidth-0.8.json");
    assert_eq!((about.tool, about.version.as_deref()), ("nvbandwidth", Some("v0.8")));
    let find = |operation, issuer, engine, pattern: &str, source, target| {
        let of = |row: &&Row| {
            row.operation == Some(operation)
                && row.issuer == issuer
                && row.engine == Some(engine)
                && row.pattern.map(<&str>::from) == Some(pattern)
                && (row.source_gpu, row.target_gpu) == (source, target)
        };
        let found: Vec<&Row> = rows.iter().filter(of).collect();
        assert_eq!(found.len(), 1, "{source:?} {target:?}");
        found[0]
    };
    let copy = Operation::Copy;
    let (read, write) = (Some(Issuer::Read), Some(Issuer::Write));
    // Row 1, column 2 is 402 in the matrix of reads and 412 in that of writes.
    let pulled = find(copy, read, Engine::Ce, "one-way", Some(2), Some(1));
    assert_eq!(pulled.bandwidth_gb_s, Some(402.0));
    let pushed = find(copy, write, Engine::Ce, "one-way", Some(1), Some(2));
    assert_eq!(pushed.bandwidth_gb_s, Some(412.0));
    assert_eq!((pushed.transport, pushed.size_bytes), (TransportKind::P2p, None));
    // The third of three matrices is the sum of both ways.
    let both = find(copy, write, Engine::Sm, "both-ways", Some(1), Some(2));
    assert_eq!((both.bandwidth_gb_s, both.bandwidth_gb_s_total), (Some(352.0), Some(704.0)));
    let to_gpu = find(copy, None, Engine::Ce, "one-way", None, Some(3));
    assert_eq!((to_gpu.transport, to_gpu.bandwidth_gb_s), (TransportKind::Local, Some(55.4)));
    assert_eq!(
        (to_gpu.source_memory, to_gpu.target_memory),
        (Some(MemoryKind::Host), Some(MemoryKind::Gpu))
    );
    let to_host = find(copy, None, Engine::Sm, "both-ways", Some(0), None);
    assert_eq!((to_host.bandwidth_gb_s, to_host.bandwidth_gb_s_total), (Some(38.5), None));
    let pulled_by_one = find(copy, read, Engine::Sm, "all-to-one", None, Some(2));
    assert_eq!(pulled_by_one.bandwidth_gb_s_total, Some(362.0));
    let load = find(Operation::Chase, read, Engine::Sm, "one-way", Some(2), Some(1));
    assert_eq!((load.latency_ns_p50, load.bandwidth_gb_s), (Some(1114), None));
    let from_host = find(Operation::Chase, None, Engine::Sm, "one-way", None, Some(0));
    assert_eq!(from_host.latency_ns_p50, Some(773));
    assert_eq!(
        find(copy, None, Engine::Ce, "one-way", Some(1), Some(1)).bandwidth_gb_s,
        Some(1620.5)
    );
}

#[test]
fn the_text_of_nvbandwidth_says_what_its_json_says() {
    let (of_json, rows) = fixture!("nvbandwidth-0.8.json");
    let (about, found) = fixture!("nvbandwidth-0.8.txt");
    assert_eq!((about.tool, &about.version), (of_json.tool, &of_json.version));
    // What was waived has no name there.
    let named = rows.into_iter().filter(|row| row.status != Status::Skipped);
    let unnumbered = |row: Row| Row { case: 0, ..row };
    let named: Vec<Row> = named.map(unnumbered).collect();
    assert_eq!(found.into_iter().map(unnumbered).collect::<Vec<Row>>(), named);
    assert_eq!(about.left_out, of_json.left_out + 1);
}

#[test]
fn tests_of_nvbandwidth_without_numbers_are_rows_with_a_reason() {
    let (about, rows) = fixture!("nvbandwidth-0.8.json");
    let of = |status| rows.iter().filter(move |row| row.status == status);
    let waived: Vec<&Row> = of(Status::Skipped).collect();
    assert_eq!(waived.len(), 1);
    assert!(waived[0].reason.starts_with("nvbandwidth waived the test"));
    let corrupt: Vec<&Row> = of(Status::Corrupt).collect();
    assert_eq!((corrupt.len(), corrupt[0].reason.as_str()), (1, "nvbandwidth found wrong data"));
    assert_eq!(
        (corrupt[0].operation, corrupt[0].issuer),
        (Some(Operation::Copy), Some(Issuer::Read))
    );
    assert_eq!(about.left_out, 1);
    assert_eq!(about.reasons, ["`all_to_host_memcpy_ce`: g2g has nothing like it"]);
    assert!(about.notes[0].starts_with("nvbandwidth ended with an error: `ASSERT"), "{about:?}");
}

#[test]
fn a_command_above_a_table_of_fabtests_says_what_it_measures() {
    let (about, rows) = fixture!("fabtests-2.6.txt");
    assert_eq!((about.tool, rows.len()), ("fabtests", 9));
    let ping_pong = &rows[0];
    assert_eq!(ping_pong.operation, Some(Operation::PingPong));
    assert_eq!(
        (ping_pong.transport, ping_pong.provider.as_deref()),
        (TransportKind::Rdma, Some("efa"))
    );
    // Of one way.
    assert_eq!((ping_pong.latency_ns_p50, ping_pong.bandwidth_gb_s), (Some(15_620), None));
    assert_eq!(ping_pong.flags, "unverified mean_latency");
    assert_eq!(rows[2].size_bytes, Some(Bytes::new(1536)));
    let read = &rows[7];
    assert_eq!((read.operation, read.issuer), (Some(Operation::Read), Some(Issuer::Read)));
    assert_eq!((read.pattern, read.window), (Some(Pattern::BothWays), Some(128)));
    assert!(is_near(read.bandwidth_gb_s, 11.95));
    assert_eq!((read.latency_ns_p50, read.bandwidth_gb_s_total), (None, None));
    let send = &rows[8];
    assert_eq!((send.operation, send.pattern), (Some(Operation::Send), Some(Pattern::OneWay)));
    assert_eq!((send.flags.as_str(), send.provider.as_deref()), ("", Some("efa")));
    assert_eq!(about.left_out, 1);
    assert!(
        about.reasons[0].starts_with("line 18: g2g has nothing like `min_int8_lat 1 10k"),
        "{about:?}"
    );
}

#[test]
fn the_machine_readable_form_of_fabtests_names_its_program() {
    let (about, rows) = fixture!("fabtests-2.6-machine-readable.txt");
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0].operation, Some(Operation::Send));
    assert_eq!(rows[0].provider.as_deref(), Some("verbs;ofi_rxm"));
    assert_eq!(rows[0].window, Some(32));
    assert!(is_near(rows[0].bandwidth_gb_s, 64.0 * 20_000.0 / 31_000.0 / 1e3));
    let write_data = &rows[2];
    assert_eq!(
        (write_data.operation, write_data.pattern),
        (Some(Operation::Write), Some(Pattern::OneWay))
    );
    assert_eq!((write_data.size_bytes, write_data.flags.as_str()), (Some(Bytes::kib(64)), ""));
    assert_eq!((rows[3].operation, rows[3].latency_ns_p50), (Some(Operation::Write), Some(15_600)));
    assert_eq!(about.left_out, 1);
    assert!(about.reasons[0].contains("is half a result"), "{about:?}");
}

#[test]
fn a_real_run_of_fi_pingpong_is_read() {
    let (about, rows) = fixture!("fi_pingpong-1.17.0.txt");
    assert_eq!((about.tool, about.left_out, about.notes.len()), ("fabtests", 0, 0));
    assert_eq!(rows.len(), 46);
    for row in &rows {
        assert_eq!((row.status, row.operation), (Status::Ok, Some(Operation::PingPong)));
        assert_eq!(row.provider.as_deref(), Some("tcp"));
        assert_eq!(row.flags, "unverified mean_latency", "{:?}", row.size_bytes);
        assert!(row.latency_ns_p50 > Some(0) && row.bandwidth_gb_s.is_none());
    }
    let sizes: Vec<u64> = rows.iter().filter_map(|row| Some(row.size_bytes?.get())).collect();
    // Those of `test_size` in its source: 0, and all powers of 2 and their sums with the half.
    assert_eq!(sizes[..8], [0, 1, 2, 3, 4, 6, 8, 12]);
    assert_eq!(sizes[43..], [3 << 20, 4 << 20, 6 << 20]);
}

#[test]
fn without_a_command_the_counts_tell_a_ping_pong_from_a_bandwidth() {
    let text = include_str!("../../../tests/fixtures/import/fabtests-2.6.txt");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('$')).collect();
    let (about, rows) = import(lines.join("\n").as_bytes());
    assert_eq!(about.unwrap().rows, 9);
    assert!(rows[..5].iter().all(|row| row.operation == Some(Operation::PingPong)));
    assert!(rows[5..].iter().all(|row| row.operation.is_none() && row.latency_ns_p50.is_none()));
    assert!(is_near(rows[8].bandwidth_gb_s, 11.4));
}

#[test]
fn a_size_that_was_shortened_beyond_recognition_is_flagged() {
    let head = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n";
    let exact = "1k      200     =200     400k        0.00s    111.21       9.21       0.11\n";
    let rounded = "1k      200     =200     429k        0.00s    119.44       9.21       0.11\n";
    let lost = "1k      200     +3       400k        0.00s    111.21       9.21       0.11\n";
    let (_, rows) = import([head, exact, rounded, lost].concat().as_bytes());
    assert_eq!(rows[0].flags, "unverified mean_latency");
    assert_eq!(rows[1].flags, "unverified mean_latency size_rounded");
    assert_eq!((rows[2].status, rows[2].latency_ns_p50), (Status::Failed, None));
}

#[test]
fn titles_and_heads_of_osu_say_what_the_numbers_are() {
    let (about, rows) = fixture!("osu-7.4.txt");
    assert_eq!((about.tool, about.version.as_deref()), ("OSU micro-benchmarks", Some("7.4")));
    assert_eq!(rows.len(), 10);
    let bandwidth = &rows[1];
    assert_eq!(
        (bandwidth.transport, bandwidth.protocol.as_deref()),
        (TransportKind::Rdma, Some("mpi"))
    );
    assert_eq!(
        (bandwidth.operation, bandwidth.pattern),
        (Some(Operation::Send), Some(Pattern::OneWay))
    );
    assert_eq!(
        (bandwidth.source_memory, bandwidth.target_memory),
        (Some(MemoryKind::Gpu), Some(MemoryKind::Host))
    );
    assert!(is_near(bandwidth.bandwidth_gb_s, 9.82144));
    assert_eq!(bandwidth.flags, "");
    assert_eq!((rows[2].status, rows[2].bandwidth_gb_s), (Status::Corrupt, None));
    let both = &rows[3];
    assert_eq!((both.bandwidth_gb_s, both.bandwidth_gb_s_total), (Some(11.0), Some(22.0)));
    assert_eq!((both.flows, both.flags.as_str()), (Some(2), "unverified"));
    let latency = &rows[5];
    assert_eq!(
        (latency.operation, latency.size_bytes),
        (Some(Operation::PingPong), Some(Bytes::new(8)))
    );
    assert_eq!((latency.latency_ns_p50, latency.latency_ns_p99), (Some(1570), Some(3500)));
    assert_eq!(latency.flags, "unverified");
    let pairs = &rows[6];
    assert_eq!(
        (pairs.pattern, pairs.flows, pairs.window),
        (Some(Pattern::Pairs), Some(4), Some(64))
    );
    assert_eq!((pairs.bandwidth_gb_s, pairs.bandwidth_gb_s_total), (Some(12.0), Some(48.0)));
    assert_eq!(pairs.source_memory, None);
    let reduced = &rows[7];
    assert_eq!(
        (reduced.operation, reduced.data_type),
        (Some(Operation::Collective(Collective::AllReduce)), Some(DataType::Float))
    );
    // Its least and largest are of ranks, not of operations.
    assert_eq!((reduced.latency_ns_p50, reduced.latency_ns_max), (Some(18_340), None));
    assert_eq!(reduced.flags, "unverified mean_latency");
    assert_eq!((rows[8].operation, rows[8].issuer), (Some(Operation::Write), Some(Issuer::Write)));
    assert_eq!(
        (rows[9].transport, rows[9].source_memory),
        (TransportKind::Nccl, Some(MemoryKind::Gpu))
    );
    assert_eq!(about.left_out, 1);
    assert!(
        about.reasons[0].ends_with("g2g has nothing like `MPI Barrier Latency Test`"),
        "{about:?}"
    );
}

#[test]
fn what_a_launcher_puts_before_lines_is_taken_off() {
    let (about, rows) = fixture!("osu-5.6.1-tagged.txt");
    assert_eq!(about.version.as_deref(), Some("5.6.1"));
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].operation, rows[0].latency_ns_p50), (Some(Operation::Read), Some(2750)));
    for (line, expected) in [
        ("0: # OSU MPI Latency Test v7.4", "# OSU MPI Latency Test v7.4"),
        (" 12: 8   1.5\r", "8   1.5"),
        ("[1,0]<stdout>:8   1.5", "8   1.5"),
        ("[0] NCCL INFO comm", "[0] NCCL INFO comm"),
        ("node: 8", "node: 8"),
    ] {
        assert_eq!(untagged(line), expected);
    }
}

#[test]
fn what_nothing_is_known_of_is_refused() {
    for text in
        ["", "\n\n", "8 9 10\n", "{}", "{\"provenance\": {}, \"rows\": []}", "{\"rows\"", "[]"]
    {
        assert_eq!(import(text.as_bytes()).0, Err(Error::Unknown), "{text}");
    }
    let (refused, _) = import(b"# nThread 1 nGpus 1 minBytes 8\n");
    let refused = refused.unwrap_err().to_string();
    assert_eq!(
        refused,
        "it has no result of nccl-tests that can be read: it ends before the first one"
    );
    let (refused, _) = import(b"# OSU MPI Hello World Test v7.4\n12\n");
    let refused = refused.unwrap_err().to_string();
    assert!(refused.ends_with("line 2: g2g has nothing like `MPI Hello World Test`"), "{refused}");
}

#[test]
fn a_hostile_line_is_quoted_without_what_a_terminal_obeys() {
    let (about, _) = import(b"# OSU MPI Latency Test v7\x1b[0m\n# Size  Latency (us)\n8  1.0\n");
    assert_eq!(about.unwrap().version.as_deref(), Some("7 [0m"));
    let text = format!("# OSU MPI \u{1b}[31mRed{} v7\n8 1.0\n", "d".repeat(100));
    let refused = import(text.as_bytes()).0.unwrap_err().to_string();
    assert!(
        refused.chars().all(|letter| !letter.is_control()) && refused.contains('…'),
        "{refused}"
    );
}
