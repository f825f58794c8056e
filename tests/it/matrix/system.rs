//! Hosts that are not as they should be: clocks, users, file systems.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::{
    common::{Rows, g2g, install, text},
    matrix::in_own_mounts,
};

const LINE: &str = "shm --numa 0:0 --pattern one-way --sizes 64,4K --samples 50 --time-limit 10ms";

/// A library that answers for the C library's clocks: `change` is C for what becomes of `*t`, the
/// time of the clock `id`, at call number `n`.
fn other_clock(folder: &Path, change: &str) -> PathBuf {
    let source = folder.join("clock.c");
    let code = format!(
        "#include <sys/syscall.h>\n#include <time.h>\n#include <unistd.h>\n\
         int clock_gettime(clockid_t id, struct timespec *t) {{\n  static unsigned long n;\n\
         int code = syscall(SYS_clock_gettime, id, t);\n  n++;\n  {change}\n  return code;\n}}\n"
    );
    fs::write(&source, code).unwrap();
    let library = folder.join("clock.so");
    let mut command = Command::new("cc");
    let built = command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.unwrap().success());
    library
}

fn with_clock(change: &str) -> (Output, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let library = other_clock(folder.path(), change);
    let mut command = g2g();
    command.args(LINE.split_whitespace()).env("LD_PRELOAD", library);
    command.arg("--output").arg(folder.path().join("run"));
    (command.output().unwrap(), folder)
}

#[test]
fn a_wall_clock_that_goes_back_changes_no_number() {
    let (result, folder) = with_clock("if (id == CLOCK_REALTIME) t->tv_sec -= 3600 * (long)n;");
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let rows = Rows::read(&folder.path().join("run"));
    assert!((0..2).all(|row| rows.cell(row, "status") == "ok"));
    let hlog = fs::read_to_string(folder.path().join("run/latency.hlog")).unwrap();
    let times = hlog.lines().filter_map(|line| line.strip_prefix("Tag=")?.split(',').nth(1));
    let times: Vec<f64> = times.map(|time| time.parse().unwrap()).collect();
    assert!(times.len() == 2 && times.is_sorted() && times[0] >= 0.0, "{times:?}");
}

#[test]
fn a_clock_of_the_measurement_that_goes_back_gives_no_number() {
    let (result, folder) = with_clock(
        "if (id == CLOCK_MONOTONIC_RAW && n % 2000 > 1000) {\n\
         t->tv_nsec -= 1000000; if (t->tv_nsec < 0) { t->tv_nsec += 1000000000; t->tv_sec--; } }",
    );
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{said}");
    let rows = Rows::read(&folder.path().join("run"));
    let mut reasons = String::new();
    for row in 0..2 {
        assert_eq!(rows.cell(row, "status"), "failed", "{said}");
        assert_eq!(rows.cell(row, "bandwidth_gb_s"), "", "{said}");
        reasons += rows.cell(row, "reason");
    }
    // Between two ranks it can also be seen as an end before the beginning.
    let told = "the clock (CLOCK_MONOTONIC_RAW) went back by ";
    assert!(reasons.contains(told) || reasons.contains("it ended before it began"), "{reasons}");
}

/// The program, its library and a folder, for whoever may read them.
fn public(folder: &Path) -> PathBuf {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let built = Path::new(crate::common::program());
    for name in ["g2g", "libsimgpu.so"] {
        install(&built.with_file_name(name), &folder.join(name));
    }
    let work = folder.join("work");
    fs::create_dir(&work).unwrap();
    fs::set_permissions(&work, fs::Permissions::from_mode(0o777)).unwrap();
    folder.join("g2g")
}

/// A command as a user without any right, and with a home that is not there.
fn as_nobody(program: &Path, line: &str, place: &Path) -> Output {
    let mut command = Command::new("setpriv");
    // Only root can become another.
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if is_root {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]).arg(program);
    let command = command.args(line.split_whitespace()).current_dir(place);
    command.env("HOME", "/nowhere").output().unwrap()
}

#[test]
fn a_user_without_rights_and_without_a_home_measures_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let program = public(folder.path());
    let work = folder.path().join("work");
    for line in [
        LINE.to_owned(),
        "p2p --simulate p4d.24xlarge --gpus 0,1 --sizes 64K --samples 6 --time-limit 1ms".into(),
        "rdma --provider tcp --memory host --operation write --pattern one-way --sizes 64K \
         --time-limit 10ms"
            .into(),
    ] {
        let result = as_nobody(&program, &line, &work);
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(0), "{line}: {said}");
        assert!(said.contains("results/"), "{line}: {said}");
    }
    let runs = fs::read_dir(work.join("results")).unwrap();
    assert_eq!(runs.filter(|run| run.as_ref().unwrap().path().join("run.csv").exists()).count(), 3);
}

#[test]
fn a_place_that_cannot_be_written_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let program = public(folder.path());
    let result = as_nobody(&program, LINE, Path::new("/"));
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("Permission denied (os error 13); name another with --output"), "{said}");
}

#[test]
fn a_read_only_home_and_a_read_only_disk_but_for_the_output_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let before = format!(
        "mount -t tmpfs tmpfs {place} && mkdir {place}/home && mount -t tmpfs -o ro tmpfs \
         {place}/home && export HOME={place}/home && cd {place}/home"
    );
    let result = in_own_mounts(&format!("{before} && $g2g {LINE} --output {place}/run"));
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let result = in_own_mounts(&format!("{before} && $g2g {LINE}"));
    let said = text(&result.stderr);
    assert_eq!(result.status.code(), Some(2), "{said}");
    assert!(said.contains("Read-only file system (os error 30); name another with"), "{said}");
}

#[test]
fn without_shared_memory_rows_have_the_remedy_and_other_transports_measure() {
    let read_only = ["Read-only file system (os error 30)", "a tmpfs must be mounted on it"];
    let small = ["the slots need 8.0 MiB of /dev/shm but 8.0 KiB are free", "--shm-size"];
    for (mount, code, status, reasons) in [
        ("mount -t tmpfs -o ro tmpfs /dev/shm", 1, "failed", read_only),
        ("mount -t tmpfs -o size=8k tmpfs /dev/shm", 0, "skipped", small),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let words = LINE.replace("64,4K", "4K,1M");
        let result =
            in_own_mounts(&format!("{mount} && $g2g {words} --output {}", output.display()));
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(code), "{said}");
        let rows = Rows::read(&output);
        let told = rows.cell(1, "reason");
        assert_eq!(rows.cell(1, "status"), status, "{said}");
        assert!(reasons.iter().all(|reason| told.contains(reason)), "{told}");
        let output = folder.path().join("rdma");
        let words = "rdma --provider tcp --memory host --operation write --pattern one-way --sizes \
                     4K --time-limit 10ms --output";
        let result = in_own_mounts(&format!("{mount} && $g2g {words} {}", output.display()));
        assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    }
}
