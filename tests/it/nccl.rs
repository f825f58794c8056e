//! The real NCCL: it is found and loaded without a GPU, says why it does not work, and its
//! variables are checked against what it knows.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use g2g::ffi::nccl::{Feature, Library};

use crate::common::{Rows, alone, g2g, kernel_has_driver, run, text};

/// The Python environment that holds NVIDIA's wheel.
fn environment() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/nccl")
}

/// NVIDIA's library.
fn library() -> PathBuf {
    let pythons = fs::read_dir(environment().join("lib")).into_iter().flatten();
    let places = pythons
        .map(|python| python.unwrap().path().join("site-packages/nvidia/nccl/lib/libnccl.so.2"));
    let found = places.into_iter().find(|path| path.is_file());
    found.expect("run scripts/test: it makes the Python environment of this test")
}

/// The program in an environment without variables of NCCL, nor files of its user.
fn program(home: &Path) -> Command {
    let mut command = g2g();
    for (name, _) in std::env::vars() {
        if ["NCCL_", "FI_", "OFI_"].iter().any(|beginning| name.starts_with(beginning)) {
            command.env_remove(name);
        }
    }
    command.env("HOME", home).env_remove("VIRTUAL_ENV").env_remove("CONDA_PREFIX");
    command
}

fn check(words: &str) -> Output {
    let home = tempfile::tempdir().unwrap();
    let line = format!("nccl --nccl-lib {} {words}", library().display());
    run(program(home.path()), &line)
}

/// Whether there is a GPU; then says that a test is left out which is about machines without one.
fn has_gpu() -> bool {
    let is_here = kernel_has_driver();
    if is_here {
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let said = format!("SKIPPED {test}: a GPU is here\n");
        io::stderr().write_all(said.as_bytes()).unwrap();
    }
    is_here
}

#[test]
fn the_library_is_loaded_and_says_what_it_is() {
    // A process loads one NCCL, and other tests of this program load another.
    alone("nccl::loads_the_library");
}

#[test]
#[ignore = "runs in a process of its own, which another test starts"]
fn loads_the_library() {
    let path = library();
    let found = Library::load(Some(&path)).unwrap();
    assert_eq!(found.version().to_string(), "2.32.3");
    assert_eq!(found.path, path.canonicalize().unwrap());
    // Only one is ever loaded.
    assert!(std::ptr::eq(Library::load(Some(Path::new("/nowhere"))).unwrap(), found));
    for feature in [Feature::Split, Feature::Windows, Feature::Registration, Feature::ScaledSum] {
        assert_eq!(found.lacks(feature), None, "{feature:?}");
    }
    let names = found.variables().unwrap();
    for name in ["NCCL_P2P_LEVEL", "NCCL_ALGO", "NCCL_DEBUG", "NCCL_PAT_ENABLE", "NCCL_BUFFSIZE"] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
    for name in ["NCCL_P2P_DIRECT_READ", "NCCL_CONFIG_INITIALIZER", "NCCL_ALL"] {
        assert!(names.iter().all(|known| known != name), "{name}");
    }
    found.unique_id().unwrap();
}

#[test]
fn without_a_driver_the_row_has_the_librarys_own_reason() {
    if has_gpu() {
        return;
    }
    let result = check("");
    assert_eq!(result.status.code(), Some(2));
    let said = text(&result.stderr);
    for part in ["NCCL 2.32.3 (", "ncclCommInitRank(1 rank) failed", "Cuda failure", "libcuda"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(said.lines().count(), 1, "{said}");

    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "run --ranks 1 --quiet --nccl-lib {} --output {}",
        library().display(),
        output.display()
    );
    run(program(folder.path()), &line);
    let rows = Rows::read(&output);
    let of_nccl = (0..rows.0.len()).find(|&row| rows.cell(row, "transport") == "nccl").unwrap();
    assert_eq!(rows.cell(of_nccl, "status"), "skipped");
    assert!(rows.cell(of_nccl, "reason").contains("ncclUnhandledCudaError (1)"));
    let json = fs::read_to_string(output.join("run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let libraries = json["provenance"]["libraries"].as_array().unwrap();
    let nccl = libraries.iter().find(|library| library["name"] == "NCCL").unwrap();
    assert_eq!(nccl["version"], "2.32.3");
}

#[test]
fn the_librarys_log_does_not_come_among_the_results() {
    if has_gpu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = format!(
        "run --ranks 1 --format csv --nccl-lib {} --output {}",
        library().display(),
        output.display()
    );
    let mut command = program(folder.path());
    command.env("NCCL_DEBUG", "INFO");
    let result = run(command, &line);
    assert!(!text(&result.stderr).contains("NCCL INFO"), "{}", text(&result.stderr));
    let log = fs::read_to_string(output.join("nccl/rank-0.log")).unwrap();
    assert!(log.contains("NCCL INFO"), "{log}");
    assert_eq!(text(&result.stdout), fs::read_to_string(output.join("run.csv")).unwrap());
}

#[test]
fn a_python_environment_in_use_is_searched_and_an_absent_library_says_what_to_install() {
    let home = tempfile::tempdir().unwrap();
    let mut command = program(home.path());
    command.env("VIRTUAL_ENV", environment());
    if !has_gpu() {
        let said = text(&run(command, "nccl").stderr);
        assert!(said.contains("NCCL 2.32.3"), "{said}");
    }
    let result = run(program(home.path()), "nccl --nccl-lib /nowhere/libnccl.so.2");
    assert_eq!(result.status.code(), Some(2));
    let said = text(&result.stderr);
    assert!(said.contains("/nowhere/libnccl.so.2") && said.contains("install it"), "{said}");
    let result = run(program(home.path()), "nccl --nccl-lib libc.so.6");
    let said = text(&result.stderr);
    assert!(said.contains("it has no ncclGetVersion"), "{said}");
}

#[test]
fn a_variable_that_this_library_would_not_heed_is_refused_with_the_remedy() {
    for (words, part) in [
        ("--nccl-env NCCL_P2P_DISABEL=1", "was NCCL_P2P_DISABLE meant?"),
        ("--nccl-env NCCL_P2P_DIRECT_READ=1", "NCCL_P2P_READ_ENABLE"),
        ("--nccl-env NCCL_UNHEARD_OF_BY_ANYBODY=1", "leave it out"),
        ("--nccl-env NCCL_P2P_DISABLE=true", "reads it as 0: write 0 or 1"),
        ("--nccl-env NCCL_P2P_LEVEL=nvl", "in capitals"),
        ("--nccl-env NCCL_ALGO=ring,foo", "`foo` is none of its words"),
        ("--nccl-env NCCL_SHM_USE_CUDA_MEMCPY=1", "2.32.3 does not read it any more"),
        ("--nccl-env FI_EFA_MTU_SIZE=4096", "libfabric aborts"),
        ("--nccl-env NCCL_ALGO=ring --nccl-env NCCL_ALGO=tree", "is given twice"),
    ] {
        let result = check(words);
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{said}");
        assert!(said.starts_with("error: ") && said.contains(part), "{words}: {said}");
        assert!(!said.contains("ncclCommInitRank"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_good_variable_is_set_and_one_of_a_plugin_can_be_allowed() {
    let good = check("--nccl-env NCCL_P2P_LEVEL=NVL --nccl-env NCCL_ALGO=ring,tree");
    assert!(!text(&good.stderr).contains("NCCL_P2P_LEVEL"));
    let words = "--nccl-env NCCL_UNHEARD_OF_BY_ANYBODY=1 --allow-unknown-env";
    let said = text(&check(words).stderr);
    assert!(said.starts_with("warning: NCCL_UNHEARD_OF_BY_ANYBODY=1 (--nccl-env)"), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let line = "run --ranks 1 --quiet --nccl-env NCCL_P2P_LEVEL=NVL --output";
    run(program(folder.path()), &format!("{line} {}", output.display()));
    let json = fs::read_to_string(output.join("run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let expected = serde_json::json!([
        ["CUDA_DEVICE_MAX_CONNECTIONS", "32"],
        ["CUDA_LAUNCH_BLOCKING", "0"],
        ["CUDA_MODULE_LOADING", "EAGER"],
        ["NCCL_P2P_LEVEL", "NVL"]
    ]);
    assert_eq!(json["provenance"]["environment"], expected);
}

#[test]
fn what_was_set_before_is_warned_of_with_where_it_comes_from() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("nccl.conf");
    fs::write(home.path().join(".nccl.conf"), "NCCL_SHM_DISABLE=yes\n").unwrap();
    fs::write(&file, "# a comment\nNCCL_SHM_DISABLE=no\nNCCL_P2P_DISABLE=on\n").unwrap();
    let line = format!("nccl --nccl-lib {}", library().display());
    let warnings = |command: Command| -> Vec<String> {
        let said = text(&run(command, &line).stderr);
        let warnings = said.lines().filter(|line| line.starts_with("warning: "));
        warnings.map(|line| line.split(": ").nth(1).unwrap().to_owned()).collect()
    };
    let from = |path: &Path| format!("NCCL_SHM_DISABLE=yes (from {})", path.display());
    assert_eq!(warnings(program(home.path())), [from(&home.path().join(".nccl.conf"))]);
    let mut command = program(home.path());
    command.env("NCCL_CONF_FILE", &file).env("NCCL_P2P_DISABLE", "off");
    let expected = [
        "NCCL_P2P_DISABLE=off (from the environment)".to_owned(),
        format!("NCCL_SHM_DISABLE=no (from {})", file.display()),
    ];
    assert_eq!(warnings(command), expected);
    let mut quiet = program(home.path());
    quiet.env("NCCL_P2P_DISABLE", "off");
    let said = text(&run(quiet, &format!("{line} --quiet")).stderr);
    assert!(!said.contains("warning"), "{said}");
}
