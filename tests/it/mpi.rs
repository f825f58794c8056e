//! Ranks of real MPI launchers: Open MPI 4 and 5, MPICH 4 and 5, and the standard's interface.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::common::{
    Rows,
    mpi::{environment, every_launcher, every_mpi, mpich, open_mpi},
    program, signal, text,
};

fn count(said: &str, sentence: &str) -> usize {
    said.matches(sentence).count()
}

#[test]
fn every_mpi_measures_between_two_and_between_three_ranks() {
    for mpi in every_mpi() {
        for ranks in [2, 3] {
            let folder = tempfile::tempdir().unwrap();
            let output = folder.path().join("run");
            let started = mpi.g2g(
                ranks,
                &format!(
                    "shm --numa 0:0 --sizes 64K --samples 5 --no-report --output {}",
                    output.display()
                ),
            );
            let (result, said) = started.wait();
            assert_eq!(result.status.code(), Some(0), "{said}");
            let rows = Rows::read(&output);
            assert_eq!(rows.len(), 2, "{said}");
            assert!((0..2).all(|row| rows.cell(row, "status") == "ok"), "{said}");
            // Rank 0 alone prints.
            assert_eq!(count(&text(&result.stdout), "every byte verified"), 1, "{said}");
            let json = fs::read_to_string(output.join("run.json")).unwrap();
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json["provenance"]["ranks"], ranks, "{said}");
        }
    }
}

#[test]
fn every_message_of_every_mpi_arrives_where_it_belongs() {
    let program = Path::new(program()).with_file_name("examples").join("messages");
    assert!(program.exists(), "`cargo test` builds it, and so does `cargo build --examples`");
    for mpi in every_mpi() {
        for line in ["all", "late"] {
            let library = mpi.library.as_ref();
            let library = library.map(|path| path.display().to_string()).unwrap_or_default();
            let (result, said) = mpi.start(3, &program, &format!("{line} {library}")).wait();
            assert_eq!(result.status.code(), Some(0), "{said}");
            assert_eq!(text(&result.stdout), "all was right\n", "{said}");
        }
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_run_and_the_rows_before_it_are_kept() {
    for mpi in every_launcher() {
        for victim in [0, 2] {
            let folder = tempfile::tempdir().unwrap();
            let output = folder.path().join("run");
            let started = mpi
                .g2g(3, &long_run(3, &output, "60s"))
                .signal_after_a_row(&output, "KILL", victim);
            let (result, said) = started.wait();
            assert_ne!(result.status.code(), Some(0), "{said}");
            assert_eq!(Rows::read(&output).cell(0, "status"), "ok", "{said}");
        }
    }
}

#[test]
fn a_rank_that_stops_is_named_and_does_not_stay() {
    for mpi in every_launcher() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let started =
            mpi.g2g(2, &long_run(2, &output, "15s")).signal_after_a_row(&output, "STOP", 1);
        let (result, said) = started.wait();
        assert_eq!(result.status.code(), Some(1), "{said}");
        assert!(is_error(&result, "rank 1"), "{said}");
        // Rank 0 has had the time to write and to print what it has.
        let rows = Rows::read(&output);
        let of_last = rows.cell(rows.len() - 1, "status");
        assert_eq!((rows.cell(0, "status"), of_last), ("ok", "failed"), "{said}");
        assert!(text(&result.stdout).contains(" FAILED"), "{said}");
    }
}

#[test]
fn every_rank_says_that_rank_0_has_stopped_before_all_end() {
    for mpi in every_launcher() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let started =
            mpi.g2g(3, &long_run(3, &output, "15s")).signal_after_a_row(&output, "STOP", 0);
        let (result, said) = started.wait();
        assert_eq!(result.status.code(), Some(1), "{said}");
        assert!(is_error(&result, "rank 1: "), "{said}");
        assert!(is_error(&result, "rank 2: rank 0 did not answer"), "{said}");
        assert_eq!(Rows::read(&output).cell(0, "status"), "ok", "{said}");
    }
}

#[test]
fn a_launcher_that_is_told_to_end_ends_all_ranks_and_the_rows_are_kept() {
    for mpi in every_launcher() {
        for (name, code) in [("INT", 130), ("TERM", 143)] {
            let folder = tempfile::tempdir().unwrap();
            let output = folder.path().join("run");
            let started = mpi.g2g(3, &two_rows(&output)).wait_for_a_row(&output);
            signal(name, started.launcher());
            let (result, said) = started.wait();
            // Open MPI has a code of its own for it, and passes SIGTERM on whatever it was told.
            let expected = if mpi.is_mpich() { code } else { 1 };
            assert_eq!(result.status.code(), Some(expected), "{said}");
            assert_eq!(whole_rows(&output), ["ok"], "{said}");
        }
    }
}

#[test]
fn rank_0_that_is_told_to_end_ends_all_ranks_with_its_exit_code() {
    for mpi in every_launcher() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let started = mpi.g2g(3, &two_rows(&output)).signal_after_a_row(&output, "TERM", 0);
        let (result, said) = started.wait();
        assert_eq!(result.status.code(), Some(143), "{said}");
        assert!(is_error(&result, "interrupted by SIGTERM; "), "{said}");
        assert!(text(&result.stdout).contains("1 row measured in "), "{said}");
        assert_eq!(whole_rows(&output), ["ok"], "{said}");
    }
}

/// A case of some seconds, and one that lasts long enough to be interrupted.
fn two_rows(output: &Path) -> String {
    format!(
        "shm --numa 0:0 --pattern one-way --sizes 64,4K --slot-size 4K --time-limit 4s --precision \
         0.0001 --no-report --output {}",
        output.display()
    )
}

/// What the rows of a folder have become, by both of its files.
fn whole_rows(output: &Path) -> Vec<String> {
    let json = fs::read_to_string(output.join("run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows = Rows::read(output);
    assert_eq!(json["rows"].as_array().unwrap().len(), rows.len());
    (0..rows.len()).map(|row| rows.cell(row, "status").to_owned()).collect()
}

/// Whether a line of standard error is an error that names `part`.
fn is_error(result: &Output, part: &str) -> bool {
    let is_it = |line: &str| line.starts_with("error: ") && line.contains(part);
    text(&result.stderr).lines().any(is_it)
}

/// Many short cases, so that each ends long before the deadline on a machine with other work. Three
/// ranks have GPUs: on two CPUs, the host's memory would have them offer their CPU at every look.
fn long_run(ranks: u32, output: &Path, deadline: &str) -> String {
    let cases = match ranks {
        2 => "shm --numa 0:0 --sizes 64..64M",
        _ => {
            "p2p --simulate p4d.24xlarge --gpus 0-2 --engine ce --operation copy --issuer read \
             --sizes 64..16M"
        }
    };
    format!(
        "{cases} --pattern one-way --time-limit 500ms --precision 0.0001 --deadline {deadline} \
         --no-report --output {}",
        output.display()
    )
}

#[test]
fn what_cannot_start_is_said_once_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.csv"), "").unwrap();
    let taken = format!("shm --sizes 64 --samples 2 --output {}", folder.path().display());
    for mpi in every_mpi() {
        for (line, part) in [
            ("shm --siz 64", "unexpected argument '--siz' found"),
            ("shm --ranks 2", "a launcher has started 3 ranks"),
            // The other ranks have joined by now.
            (&taken, "it already holds run.csv"),
        ] {
            let (result, said) = mpi.outcome(3, line);
            assert_eq!(result.status.code(), Some(2), "{said}");
            assert_eq!(count(&said, part), 1, "{said}");
            assert_eq!(count(&said, "error: "), 1, "{said}");
        }
        for (line, part) in [("--version", "g2g 0"), ("shm --sizes 64 --dry-run", "1 shm copy")] {
            let (result, said) = mpi.outcome(2, line);
            assert_eq!(result.status.code(), Some(0), "{said}");
            assert_eq!(count(&text(&result.stdout), part), 1, "{said}");
        }
    }
}

#[test]
fn a_library_that_does_not_fit_the_launcher_is_refused_before_it_is_started() {
    let [_, open_mpi_5] = open_mpi();
    let [_, mpich_5] = mpich();
    let of_open_mpi = environment("openmpi").join("lib/libmpi.so.40");
    let of_mpich = environment("mpich").join("lib/libmpi.so.12");
    for (mpi, library, part) in [
        (&open_mpi_5, of_mpich, "is MPICH Version: 5"),
        (&open_mpi_5, environment("mpich").join("lib/libmpi_abi.so.1"), "is MPICH Version: 5"),
        (&mpich_5, of_open_mpi, "is Open MPI v5"),
        (&mpich_5, "/absent/libmpi.so".into(), "No such file or directory"),
        (&mpich_5, "libc.so.6".into(), "it is no MPI library"),
    ] {
        let line = format!("shm --sizes 64 --samples 2 --mpi-lib {}", library.display());
        let (result, said) = mpi.outcome(2, &line);
        assert_eq!(result.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{said}");
        assert!(said.contains("or leave it out"), "{said}");
    }
}

#[test]
fn copies_that_mpi_does_not_join_are_refused() {
    for (count, rank) in
        [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK")]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut command = crate::common::g2g();
        command.env(count, "2").env(rank, "0").env("OMPI_ALLOW_RUN_AS_ROOT", "1");
        let output = folder.path().join("run");
        let line = format!("shm --sizes 64 --samples 2 --output {}", output.display());
        let result = crate::common::run(command, &line);
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("rank 0 of 2 ({count}), but rank 0 of 1 to")), "{said}");
        assert!(!output.exists(), "{said}");
    }
}

#[test]
fn eight_ranks_on_a_simulated_machine_find_what_one_process_finds() {
    let folder = tempfile::tempdir().unwrap();
    let line = "p2p --simulate p4d.24xlarge --pattern one-way,bisection --issuer read --sizes 1M \
                --operation copy --time-limit 5ms --quiet --output";
    let alone = folder.path().join("alone");
    let mut command = Command::new(program());
    let result = command.args(line.split_whitespace()).arg(&alone).output().unwrap();
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let alone = Rows::read(&alone);
    // By copy engine and by kernels: every ordered pair, and all of them at once.
    assert_eq!(alone.len(), 2 * 57);
    for mpi in [&open_mpi()[0], &mpich()[1]] {
        let output = folder.path().join(format!("mpich-{}", mpi.is_mpich()));
        let (result, said) = mpi.outcome(8, &format!("{line} {}", output.display()));
        assert_eq!(result.status.code(), Some(0), "{said}");
        let rows = Rows::read(&output);
        assert_eq!(rows.len(), alone.len(), "{said}");
        for row in 0..rows.len() {
            let cells = |rows: &Rows| {
                ["pattern", "engine", "source_gpu", "target_gpu", "simulated", "flows"]
                    .map(|name| rows.cell(row, name).to_owned())
            };
            assert_eq!(cells(&rows), cells(&alone), "{said}");
            assert_eq!(rows.cell(row, "source_rank"), rows.cell(row, "source_gpu"));
            // By the time of the operations alone: fewer streams have fewer events.
            let rate = |rows: &Rows| {
                let number = |column| rows.number(row, column);
                let bytes =
                    number("size_bytes") * number("flows") * number("operations_per_sample");
                bytes / (bytes / number("bandwidth_gb_s_total") - number("empty_span_ns"))
            };
            let (found, expected) = (rate(&rows), rate(&alone));
            assert!((found - expected).abs() <= 0.005 * expected, "{found} for {expected}");
        }
    }
}
