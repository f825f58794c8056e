//! Libraries that are missing, or not what they should be.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use g2g::ffi::cuda::CALLS;
use tempfile::TempDir;

use crate::common::{g2g, kernel_has_driver, mpi::environment, text};

/// A library, by its name in the loader, and a command that needs it.
struct Kind {
    name: &'static str,
    words: &'static str,
    /// What is said of any that does not load.
    needs: &'static str,
}

const CUDA: Kind = Kind {
    name: "libcuda.so.1",
    words: "p2p --sizes 64",
    needs: "this needs an NVIDIA GPU and its driver",
};
const FABRIC: Kind = Kind {
    name: "libfabric.so.1",
    words: "rdma --provider tcp --memory host --sizes 64 --samples 6 --time-limit 2ms",
    needs: "this needs libfabric",
};

/// What stands in a file in place of a library, and what is said of it.
fn wrong(folder: &Path, kind: &Kind) -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let source = folder.join("nothing.c");
    fs::write(&source, "int nothing;\n").unwrap();
    let built = folder.join("nothing.so");
    let name = format!("-Wl,-soname,{}", kind.name);
    let cc = Command::new("cc").args(["-shared", &name, "-o"]).arg(&built).arg(&source).status();
    assert!(cc.unwrap().success());
    let nothing = fs::read(&built).unwrap();
    let mut other_class = nothing.clone();
    // The class of an ELF file: 1 is 32 bit.
    other_class[4] = 1;
    vec![
        ("empty", Vec::new(), "file too short"),
        ("not ELF", b"#!/bin/sh\nexit 0\n".repeat(400), "invalid ELF header"),
        // The loader passes over it to the next place, which for libfabric has one.
        ("32 bit", other_class, "wrong ELF class"),
        ("cut off", nothing[..nothing.len() / 4].to_vec(), ""),
        ("without functions", nothing, " has no "),
    ]
}

/// Runs g2g with what is in `folder` before all other libraries.
fn with_libraries(folder: &Path, words: &str) -> (Output, TempDir) {
    let output = tempfile::tempdir().unwrap();
    let mut command = g2g();
    command.args(words.split_whitespace()).env("LD_LIBRARY_PATH", folder);
    command.arg("--output").arg(output.path().join("run"));
    (command.output().unwrap(), output)
}

/// Fails unless it was refused with one sentence, before anything was made.
fn assert_refused(result: &Output, output: &TempDir, parts: &[&str], what: &str) {
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "{what}: {said}");
    assert_eq!(said.lines().count(), 1, "{what}: {said}");
    assert!(said.starts_with("error: "), "{what}: {said}");
    for part in parts {
        assert!(said.contains(part), "{what}: {said}");
    }
    assert!(!output.path().join("run").exists(), "{what}");
}

#[test]
fn a_driver_of_the_wrong_kind_is_refused_with_the_reason() {
    every_wrong_kind(&CUDA);
}

#[test]
fn a_libfabric_of_the_wrong_kind_is_refused_with_the_reason() {
    every_wrong_kind(&FABRIC);
}

/// Builds a driver of which every function answers `code`.
fn driver_of_one_answer(file: &Path, code: u32) {
    let source = file.with_extension("c");
    let names = CALLS.iter().flat_map(|(_, names)| *names);
    let functions = names.map(|name| format!("int {name}() {{ return {code}; }}\n"));
    fs::write(&source, functions.collect::<String>()).unwrap();
    let name = format!("-Wl,-soname,{}", CUDA.name);
    let cc =
        Command::new("cc").args(["-w", "-shared", &name, "-o"]).arg(file).arg(&source).status();
    assert!(cc.unwrap().success());
}

#[test]
fn a_toolkits_stub_is_passed_over_for_the_driver_and_named_where_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let (stubs, real) = (folder.path().join("stubs"), folder.path().join("real"));
    for (folder, file, code) in [(&stubs, "libcuda.so", 34), (&real, CUDA.name, 100)] {
        fs::create_dir(folder).unwrap();
        driver_of_one_answer(&folder.join(file), code);
    }
    let both = format!("{}:{}", stubs.display(), real.display());
    let (result, output) = with_libraries(Path::new(&both), CUDA.words);
    let remedy = if kernel_has_driver() { "`nvidia-smi -L`" } else { "`modprobe nvidia`" };
    assert_refused(&result, &output, &["cuInit", remedy], "a driver and no GPU");
    // Some toolkits have the stub by the driver's own name too.
    fs::rename(stubs.join("libcuda.so"), stubs.join(CUDA.name)).unwrap();
    let (result, output) = with_libraries(&stubs, CUDA.words);
    assert_refused(&result, &output, &["cuInit", "a toolkit's stub"], "a stub");
}

fn every_wrong_kind(kind: &Kind) {
    let folder = tempfile::tempdir().unwrap();
    let libraries = folder.path().join("lib");
    fs::create_dir(&libraries).unwrap();
    for (what, content, reason) in wrong(folder.path(), kind) {
        fs::write(libraries.join(kind.name), content).unwrap();
        let (result, output) = with_libraries(&libraries, kind.words);
        let is_passed_over = what == "32 bit" && kind.name == FABRIC.name;
        if is_passed_over {
            assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
            continue;
        }
        let parts = match what {
            "without functions" => vec![reason],
            "cut off" => vec![],
            _ => vec![reason, kind.needs],
        };
        assert_refused(&result, &output, &parts, what);
    }
}

/// A copy of a real library that ends at a share of its length.
fn cut(library: &Path, to: &Path, share: f64) {
    let whole = fs::read(library).unwrap();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of it")]
    let end = (whole.len() as f64 * share) as usize;
    fs::write(to, &whole[..end]).unwrap();
}

#[test]
fn a_library_that_was_cut_off_is_named_and_does_not_end_in_a_bus_error() {
    let folder = tempfile::tempdir().unwrap();
    let real: PathBuf = fs::canonicalize(libfabric()).unwrap();
    for share in [0.01, 0.3, 0.6, 0.9] {
        cut(&real, &folder.path().join(FABRIC.name), share);
        let (result, output) = with_libraries(folder.path(), FABRIC.words);
        let told = ["libfabric.so.1", "shorter than it says"];
        assert_refused(&result, &output, &told, &format!("{share}"));
    }
}

/// Debian's libfabric.
fn libfabric() -> PathBuf {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    let mut paths = folders.iter().map(|folder| Path::new(folder).join(FABRIC.name));
    paths.find(|path| path.exists()).expect("scripts/test installs it")
}

/// NVIDIA's NCCL.
fn nccl_library() -> PathBuf {
    let pythons = fs::read_dir(environment("nccl").join("lib")).unwrap();
    let place = "site-packages/nvidia/nccl/lib/libnccl.so.2";
    let mut paths = pythons.map(|python| python.unwrap().path().join(place));
    paths.find(|path| path.exists()).expect("scripts/test makes its environment")
}

#[test]
fn an_nccl_of_the_wrong_kind_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnccl.so.2");
    let nccl = Kind { name: "libnccl.so.2", words: "", needs: "this needs NCCL" };
    let words = format!("nccl --operation all_reduce --sizes 64 --nccl-lib {}", file.display());
    let mut cases = wrong(folder.path(), &nccl);
    let real = fs::read(nccl_library()).unwrap();
    cases.push(("the beginning of a real one", real[..1 << 20].to_vec(), "shorter than it says"));
    for (what, content, reason) in cases {
        fs::write(&file, content).unwrap();
        let (result, output) = with_libraries(Path::new("/nowhere"), &words);
        let path = file.display().to_string();
        assert_refused(&result, &output, &[&path, reason], what);
    }
    fs::remove_file(&file).unwrap();
    let (result, output) = with_libraries(Path::new("/nowhere"), &words);
    assert_refused(&result, &output, &["No such file", nccl.needs], "removed");
}

#[test]
fn an_mpi_of_the_wrong_kind_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libmpi.so.40");
    let mpi = Kind { name: "libmpi.so.40", words: "", needs: "" };
    let words = format!("shm --numa 0:0 --sizes 64 --mpi-lib {}", file.display());
    for (what, content, reason) in wrong(folder.path(), &mpi) {
        fs::write(&file, content).unwrap();
        // What a rank of Open MPI finds in its environment.
        let output = tempfile::tempdir().unwrap();
        let mut command = g2g();
        command.args(words.split_whitespace()).arg("--output").arg(output.path().join("run"));
        for (name, value) in [("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0")] {
            command.env(format!("OMPI_COMM_WORLD_{name}"), value);
        }
        let reason = if what == "without functions" { "" } else { reason };
        assert_refused(&command.output().unwrap(), &output, &["libmpi.so.40", reason], what);
    }
}
