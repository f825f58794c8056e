//! NVIDIA's own `libcuda` and NVML of several drivers, which scripts/test unpacks: they have every
//! function that g2g asks for, and g2g says what to do where there is no GPU.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use g2g::ffi::{cuda::CALLS, nccl};
use regex::bytes::Regex;

use super::architecture::sources;
use crate::common::{exports, install, kernel_has_driver, program, run, text};

/// What NVML has only from some driver on: the name, and the oldest of these drivers that has it.
/// Without it g2g does not report what it tells of; all other functions are in every driver.
const LATER: [(&str, u32); 4] = [
    ("nvmlDeviceGetNvLinkRemoteDeviceType", 470),
    ("nvmlSystemGetConfComputeState", 535),
    ("nvmlDeviceGetGpuFabricInfoV", 550),
    ("nvmlDeviceGetNumaNodeId", 550),
];

/// A driver's major version, and the folder that has its libraries.
fn drivers() -> BTreeMap<u32, PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("tests/drivers.txt")).unwrap();
    let driver = |line: &str| {
        let major = line.split(' ').next().unwrap();
        let folder = root.join("target/drivers").join(major);
        let found = Command::new("find").arg(&folder).args(["-name", "libcuda.so.1"]).output();
        let found = text(&found.unwrap().stdout);
        assert_eq!(found.lines().count(), 1, "run scripts/test: it unpacks {}", folder.display());
        (major.parse().unwrap(), Path::new(found.trim()).parent().unwrap().to_owned())
    };
    let drivers: BTreeMap<u32, PathBuf> = list.lines().map(driver).collect();
    assert!(drivers.len() > 3);
    drivers
}

#[test]
fn each_driver_has_the_functions_that_the_table_says() {
    for (driver, folder) in drivers() {
        let exported = exports(&folder.join("libcuda.so.1"));
        for (since, names) in CALLS {
            let missing: Vec<_> = names.iter().filter(|name| !exported.contains(**name)).collect();
            let is_there = driver >= since.parse().unwrap();
            assert_eq!(missing.is_empty(), is_there, "{driver}, from {since} on: {missing:?}");
        }
    }
}

#[test]
fn the_documents_name_the_versions_that_the_tables_have() {
    let words: Vec<&str> = include_str!("../../docs/guide.md").split_whitespace().collect();
    let text = words.join(" ");
    let [(driver, _), later @ ..] = CALLS else { unreachable!() };
    let oldest =
        [format!("driver {driver} or newer"), format!("NCCL {} or newer", nccl::CALLS[0].0)];
    let later = later.iter().filter(|(since, _)| since > driver);
    for words in oldest.into_iter().chain(later.map(|(since, _)| format!("from driver {since} on")))
    {
        assert!(text.contains(&words), "{words}");
    }
    let drivers: Vec<String> = drivers().keys().map(u32::to_string).collect();
    let [most @ .., last] = &drivers[..] else { unreachable!() };
    let tried = format!("the drivers {} and {last}", most.join(", "));
    assert!(text.contains(&tried), "{tried}");
}

/// The functions of NVML that g2g calls on a simulated machine: between it and the simulated NVML
/// comes a library that writes them down.
fn called() -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let (program, log) = (folder.path().join("g2g"), folder.path().join("called"));
    let built = Path::new(crate::common::program());
    install(built, &program);
    let simulated = folder.path().join("libreal.so");
    install(&built.with_file_name("libsimgpu.so"), &simulated);
    // The names under which the program looks functions up.
    let names = Regex::new(r"(?-u)nvml[A-Z][A-Za-z0-9]*(?:_v[0-9]+)?\x00").unwrap();
    let names: BTreeSet<String> = names
        .find_iter(&fs::read(built).unwrap())
        .map(|name| text(name.as_bytes()).trim_end_matches('\0').to_owned())
        .collect();
    assert!(names.len() > 200, "{names:?}");
    // No function of NVML takes more than eight numbers, or one that is no integer.
    let mut source = format!(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n\
         #define CALL(name) long name(long a, long b, long c, long d, long e, long f, long g, \
         long h) {{ FILE *log = fopen({log:?}, \"a\"); fprintf(log, #name \"\\n\"); fclose(log); \
         long (*next)() = (long (*)())dlsym(RTLD_NEXT, #name); \
         return next ? next(a, b, c, d, e, f, g, h) : 13; }}\n"
    );
    source.extend(names.iter().map(|name| format!("CALL({name})\n")));
    let file = folder.path().join("called.c");
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-w", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o"])
        .arg(folder.path().join("libsimgpu.so"));
    assert!(cc.arg(&file).arg(&simulated).status().unwrap().success());
    for line in ["topo", "doctor", "local --gpus 0 --sizes 4K --samples 1 --time-limit 1ms"] {
        let mut command = Command::new(&program);
        command.current_dir(folder.path());
        let result = run(command, &format!("{line} --simulate p5.48xlarge"));
        assert_ne!(result.status.code(), Some(2), "{}", text(&result.stderr));
    }
    fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn each_nvml_has_the_functions_that_are_called() {
    let called = called();
    assert!(called.contains("nvmlInit_v2") && called.len() > 30, "{called:?}");
    // None that the source names is left out by what ran.
    let direct = Regex::new(r"\.lib\(\)\s*\.(nvml\w+)").unwrap();
    for text in sources().values() {
        for found in direct.captures_iter(text.as_bytes()) {
            let name = String::from_utf8_lossy(&found[1]);
            assert!(called.contains(name.as_ref()), "{name} is not called in this test");
        }
    }
    for (name, _) in LATER {
        assert!(called.contains(name), "{name} is not called any more");
    }
    for (driver, folder) in drivers() {
        let exported = exports(&folder.join("libnvidia-ml.so.1"));
        for name in &called {
            let later = LATER.iter().find(|(later, _)| later == name);
            let is_there = later.is_none_or(|(_, since)| driver >= *since);
            assert_eq!(exported.contains(name), is_there, "{driver}: {name}");
        }
    }
}

/// g2g with a driver's libraries. For root, `libcuda` makes a file in `/dev`, which the rights of a
/// name space of users do not reach.
fn with_driver(folder: &Path, line: &str) -> Output {
    let mut command = Command::new("unshare");
    command.arg("--map-root-user").arg(program());
    command.env("LD_LIBRARY_PATH", folder).env_remove("CUDA_VISIBLE_DEVICES");
    command.env("COLUMNS", "1000");
    run(command, line)
}

#[test]
fn a_driver_without_a_gpu_or_too_old_is_named_with_the_remedy() {
    if kernel_has_driver() {
        io::stderr().write_all(b"SKIPPED: NVIDIA's driver is loaded\n").unwrap();
        return;
    }
    let control = Path::new("/dev/nvidiactl");
    let is_there = control.exists();
    for (driver, folder) in drivers() {
        let library = fs::canonicalize(folder.join("libcuda.so.1")).unwrap();
        let reason = if driver < CALLS[0].0.parse().unwrap() {
            "the driver has no cuDeviceGetUuid_v2: install 470 or newer".to_owned()
        } else {
            format!(
                "cuInit({}) failed: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is \
                 detected; the kernel has no NVIDIA driver loaded, which `modprobe nvidia` may \
                 change",
                library.display()
            )
        };
        for command in ["p2p", "local"] {
            let result = with_driver(&folder, command);
            let said = text(&result.stderr);
            assert_eq!(said, format!("error: nothing can be measured: {reason}\n"));
            assert_eq!((result.status.code(), text(&result.stdout)), (Some(2), String::new()));
        }
        let result = with_driver(&folder, "topo");
        let said = text(&result.stdout);
        assert_eq!(result.status.code(), Some(0), "{said}");
        for missing in [&reason, "cannot start libnvidia-ml.so.1: NVIDIA driver is not loaded"] {
            assert!(said.contains(&format!("\nmissing: {missing}\n")), "{missing}: {said}");
        }
        assert!(said.contains("no GPU is here that this process may use"), "{said}");
        let result = with_driver(&folder, "doctor --json");
        let json: serde_json::Value = serde_json::from_str(&text(&result.stdout)).unwrap();
        let found = json["findings"].as_array().unwrap();
        let found = found.iter().find(|finding| finding["check"] == "driver").unwrap();
        assert_eq!(found["verdict"], "note", "{found:#}");
        assert_eq!(found["remedy"], format!("on a machine with GPUs: {reason}"), "{found:#}");
    }
    assert_eq!(control.exists(), is_there, "{} was made", control.display());
}
