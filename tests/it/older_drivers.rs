//! A driver that lacks a function is good for all that does without it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use g2g::ffi::cuda::CALLS;

use crate::common::{Rows, install, program, run, simulation::four_gpus, text};

/// g2g beside a simulated driver in which nobody finds `function`.
struct Older(tempfile::TempDir);

impl Older {
    fn without(function: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = Path::new(program());
        install(program, &folder.path().join("g2g"));
        let mut library = fs::read(program.with_file_name("libsimgpu.so")).unwrap();
        hide(&mut library, function);
        fs::write(folder.path().join("libsimgpu.so"), library).unwrap();
        fs::write(folder.path().join("machine.toml"), four_gpus("", "")).unwrap();
        Self(folder)
    }

    fn g2g(&self, line: &str) -> Output {
        let mut command = Command::new(self.0.path().join("g2g"));
        command.current_dir(self.0.path());
        run(command, &format!("{line} --simulate ./machine.toml"))
    }

    /// Each row's transport, way of sharing memory, status and reason.
    fn rows(&self, line: &str) -> Vec<[String; 4]> {
        let output = self.0.path().join("run");
        let line = format!("{line} --engine ce --operation copy --sizes 4K --time-limit 1ms");
        let result = self.g2g(&format!("{line} --no-report --output {}", output.display()));
        assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
        let rows = Rows::read(&output);
        fs::remove_dir_all(&output).unwrap();
        let cells = ["transport", "handle", "status", "reason"];
        (0..rows.len()).map(|row| cells.map(|cell| rows.cell(row, cell).to_owned())).collect()
    }
}

/// Takes `function` out of the names by which a 64-bit ELF library is searched.
fn hide(library: &mut [u8], function: &str) {
    const DYNAMIC_SYMBOLS: usize = 11;
    const HIDDEN: u8 = 2;
    let number = |library: &[u8], at: usize, size: usize| {
        library[at..at + size].iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte))
    };
    let (headers, count) = (number(library, 40, 8), number(library, 60, 2));
    let header = |section: usize| headers + 64 * section;
    let is_it = |&section: &usize| number(library, header(section) + 4, 4) == DYNAMIC_SYMBOLS;
    let symbols = header((0..count).find(is_it).unwrap());
    let names = number(library, header(number(library, symbols + 40, 4)) + 24, 8);
    let (first, size) = (number(library, symbols + 24, 8), number(library, symbols + 32, 8));
    let name = format!("{function}\0").into_bytes();
    let mut entries = (first..first + size).step_by(24);
    let entry =
        entries.find(|&at| library[names + number(library, at, 4)..].starts_with(&name)).unwrap();
    // The library itself still refers to it, by its entry.
    library[entry + 5] = HIDDEN;
    library[names + number(library, entry, 4)] = b'x';
}

fn lack(function: &str) -> String {
    let group = CALLS.iter().find(|(_, names)| names.contains(&function)).unwrap();
    format!("the driver has no {function}: install {} or newer", group.0)
}

#[test]
fn without_words_in_streams_all_is_measured_but_the_way_through_the_host() {
    for function in ["cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"] {
        for [transport, _, status, reason] in
            Older::without(function).rows("run --gpus 0,1 --ranks 1")
        {
            match transport.as_str() {
                "shm" => assert_eq!([status, reason], ["skipped".to_owned(), lack(function)]),
                "local" | "p2p" => assert_eq!(status, "ok", "{reason}"),
                _ => {}
            }
        }
    }
}

#[test]
fn without_one_way_of_sharing_memory_there_is_the_other() {
    for (function, lacking) in [
        ("cuIpcGetMemHandle", "ipc"),
        ("cuIpcOpenMemHandle_v2", "ipc"),
        ("cuIpcCloseMemHandle", "ipc"),
        ("cuMemCreate", "cumem"),
        ("cuMemImportFromShareableHandle", "cumem"),
    ] {
        let older = Older::without(function);
        for handle in ["ipc", "cumem"] {
            let rows = older.rows(&format!("p2p --gpus 0,1 --ranks 2 --handle {handle}"));
            assert!(!rows.is_empty());
            for [_, row_handle, status, reason] in rows {
                assert_eq!(row_handle, handle);
                if handle == lacking {
                    assert_eq!([status, reason], ["skipped".to_owned(), lack(function)]);
                } else {
                    assert_eq!(status, "ok", "{reason}");
                }
            }
        }
        // Within one process nothing is shared.
        let rows = older.rows("p2p --gpus 0,1 --ranks 1");
        assert!(rows.iter().all(|[_, _, status, _]| status == "ok"), "{rows:?}");
    }
}

#[test]
fn without_a_function_of_nccl_what_takes_it_is_skipped_and_says_so() {
    for (function, since, flags, count) in [
        ("ncclCommRegister", "2.19", "-R 0,1", 1),
        ("ncclCommDeregister", "2.19", "-R 0,1", 1),
        ("ncclCommWindowRegister", "2.27", "-R 0,2", 1),
        ("ncclCommSplit", "2.18", "--split DIV:2", 0),
        ("ncclMemAlloc", "2.19", "--buffer cuda,nccl", 1),
        ("ncclMemFree", "2.19", "--buffer cuda,nccl -R 0,1", 2),
    ] {
        let older = Older::without(function);
        let output = older.0.path().join("run");
        let line = format!(
            "nccl --operation all_gather --place out-of-place --sizes 4K --samples 1 \
             --time-limit 1ms {flags} --no-report --output {}",
            output.display()
        );
        let result = older.g2g(&line);
        assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
        let rows = Rows::read(&output);
        let of = |status: &str| -> Vec<usize> {
            (0..rows.len()).filter(|&row| rows.cell(row, "status") == status).collect()
        };
        let reason = format!("NCCL 2.32.3: this NCCL has no {function}: install {since} or newer");
        assert_eq!((of("ok").len(), of("skipped").len()), (count, count.max(1)), "{function}");
        assert!(
            of("skipped").into_iter().all(|row| rows.cell(row, "reason") == reason),
            "{function}"
        );
        fs::remove_dir_all(&output).unwrap();
    }
}

#[test]
fn without_a_function_for_graphs_only_they_are_skipped() {
    for function in ["cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags", "cuGraphLaunch"] {
        let older = Older::without(function);
        for (graph, expected) in [("0", "ok"), ("1", "skipped")] {
            let output = older.0.path().join("run");
            let line = format!(
                "nccl --operation all_gather --place out-of-place --sizes 4K --samples 1 \
                 --time-limit 1ms -G {graph} --no-report --output {}",
                output.display()
            );
            let result = older.g2g(&line);
            assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
            let rows = Rows::read(&output);
            let reason = if expected == "ok" { String::new() } else { lack(function) };
            let found = (rows.cell(0, "status"), rows.cell(0, "reason"));
            assert_eq!(found, (expected, reason.as_str()));
            fs::remove_dir_all(&output).unwrap();
        }
    }
}

#[test]
fn a_survey_says_what_it_could_not_ask() {
    let function = "cuDeviceGetP2PAttribute";
    let result = Older::without(function).g2g("topo");
    let told = text(&result.stdout);
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    assert!(told.contains(&format!("missing: {}\n", lack(function))), "{told}");
    assert!(told.contains("GPU 3"), "{told}");
}

#[test]
fn without_what_every_case_needs_the_driver_counts_as_absent() {
    let result = Older::without("cuLaunchKernel").g2g("topo");
    let told = text(&result.stdout);
    assert!(told.contains(&format!("missing: {}\n", lack("cuLaunchKernel"))), "{told}");
    assert!(told.contains("no GPU is here"), "{told}");
}

#[test]
fn a_library_that_does_not_load_says_why() {
    let older = Older::without("cuLaunchKernel");
    let library = older.0.path().join("libsimgpu.so");
    fs::write(&library, "no library").unwrap();
    let told = text(&older.g2g("topo").stderr);
    let why = format!("cannot load the simulated machine's library: {}: ", library.display());
    assert!(told.contains(&why) && told.contains("too short"), "{told}");
}
