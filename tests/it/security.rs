//! What `docs/security.md` promises, from outside.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Output,
};

use crate::common::{
    SOON, children, eventually, g2g, program, shared_memory_names, signal, start, text, wait,
};

/// A short run.
const QUICK: &str = "--samples 6 --time-limit 1ms";

/// All files below a folder.
fn below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            below(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn contains(text: &[u8], part: &str) -> bool {
    text.windows(part.len()).any(|window| window == part.as_bytes())
}

/// Runs g2g in `folder` with the words of `line`.
fn run_in(folder: &Path, line: &str) -> Output {
    g2g().args(line.split_whitespace()).current_dir(folder).output().unwrap()
}

/// Variables that hold secrets, each with a value of its own that nobody else has.
fn secrets() -> BTreeMap<String, String> {
    let own = format!("{:08x}{:08x}", std::process::id(), std::ptr::from_ref(&QUICK).addr());
    let names = "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN HF_TOKEN GITHUB_TOKEN \
        WANDB_API_KEY DATABASE_URL http_proxy HTTPS_PROXY LD_PRELOAD_KEY SLURM_JWT NCCL_PASSWORD \
        NCCL_DEBUG_TOKEN NCCL_ALGO_KEY FI_PASSWORD FI_EFA_SECRET FI_PSM2_UUID OFI_NCCL_TOKEN \
        OFI_SECRET CUDA_SECRET CUDA_VISIBLE_DEVICES_KEY MPI_PASSWORD G2G_TOKEN";
    let secret = |(number, name): (usize, &str)| {
        let value = format!("hunter2{own}{number:02}");
        let value = match name.ends_with("roxy") || name.ends_with("PROXY") {
            true => format!("http://user:{value}@127.0.0.1:1"),
            false => value,
        };
        (name.to_owned(), value)
    };
    names.split_whitespace().enumerate().map(secret).collect()
}

#[test]
fn no_secret_of_the_environment_is_in_any_output() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let secrets = secrets();
    let in_file = secrets["HF_TOKEN"].replace("hunter2", "hunter3");
    fs::write(folder.join(".nccl.conf"), format!("NCCL_SECRET={in_file}\nNCCL_DEBUG=INFO\n"))
        .unwrap();
    fs::write(
        folder.join("plan.toml"),
        "command = \"shm\"\nflags = \"--sizes 4K --samples 20 --time-limit 5ms\"\nrepetitions = 2\n\
         [[axis]]\nname = \"slots\"\nvalues = [{ label = \"small\", flags = \"--slot-size 4K\" }]\n",
    )
    .unwrap();
    fs::write(
        folder.join("corrupt.toml"),
        "schema = 1\nfrom = \"p4d.24xlarge\"\n[[fault.flip]]\nsource = 0\ntarget = 1\nalways = true\n",
    )
    .unwrap();
    let p2p = format!("p2p --simulate p4d.24xlarge --gpus 0,1 --sizes 4K {QUICK}");
    let lines = [
        (0, format!("{p2p} --output p2p --verbose")),
        (0, format!("{p2p} --resume p2p")),
        (0, format!("shm --sizes 4K {QUICK} --output shm --format json")),
        (
            0,
            format!(
                "nccl --simulate p4d.24xlarge --gpus 0-3 --sizes 8K {QUICK} --output nccl --verbose"
            ),
        ),
        (
            0,
            format!(
                "nccl --simulate p4d.24xlarge --ranks 2 --sizes 8K {QUICK} --output ranks --format markdown"
            ),
        ),
        (0, format!("rdma --ranks 2 --provider tcp --sizes 4K {QUICK} --output rdma --format csv")),
        (
            1,
            format!(
                "p2p --simulate corrupt.toml --gpus 0,1 --sizes 4K {QUICK} --output corrupt --format prometheus"
            ),
        ),
        (2, "p2p --simulate nothing.toml".to_owned()),
        (2, format!("nccl --simulate p4d.24xlarge --nccl-env NCCL_NOTHING=1 --sizes 8K {QUICK}")),
        (0, "sweep plan.toml --output sweep".to_owned()),
        (0, "topo --simulate p4d.24xlarge --format json".to_owned()),
        (0, "topo".to_owned()),
        (0, "doctor --simulate p4d.24xlarge --verbose".to_owned()),
        (0, "doctor --format json --simulate p4d.24xlarge".to_owned()),
        (0, "report p2p nccl shm -o all.html".to_owned()),
        (0, "compare p2p --by issuer --all".to_owned()),
        (2, "compare p2p p2p".to_owned()),
    ];
    let is_free = |place: &str, output: &[u8]| {
        for (name, value) in secrets.iter().chain([(&"~/.nccl.conf".to_owned(), &in_file)]) {
            let value = value.rsplit(':').find(|part| part.contains("hunter")).unwrap();
            let value = value.split('@').next().unwrap();
            assert!(!contains(output, value), "{place} has the value of {name}");
        }
    };
    for (code, line) in lines {
        let mut command = g2g();
        command.args(line.split_whitespace()).current_dir(folder).env("HOME", folder);
        command.envs(&secrets).env("NCCL_PROTO", "Simple").env_remove("NCCL_CONF_FILE");
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        // Whatever a machine's health is, the answer is looked at.
        let is_verdict = line.starts_with("doctor") && output.status.code() == Some(1);
        assert!(output.status.code() == Some(code) || is_verdict, "{line}: {said}");
        is_free(&format!("stdout of {line}"), &output.stdout);
        is_free(&format!("stderr of {line}"), &output.stderr);
    }
    let mut files = Vec::new();
    below(folder, &mut files);
    files.retain(|path| !path.ends_with(".nccl.conf"));
    assert!(files.len() > 30, "{files:?}");
    for file in &files {
        is_free(&file.display().to_string(), &fs::read(file).unwrap());
    }
    // A setting is there, and of what is none the name.
    let json = fs::read_to_string(folder.join("nccl/run.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let environment = json["provenance"]["environment"].as_array().unwrap();
    for pair in [["NCCL_PROTO", "Simple"], ["NCCL_PASSWORD", "(value not recorded)"]] {
        assert!(environment.contains(&serde_json::json!(pair)), "{environment:?}");
    }
    assert!(files.iter().any(|file| file.ends_with("nccl/nccl/rank-0.log")), "{files:?}");
}

#[test]
fn a_planted_link_is_not_written_through() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("victim"), "precious").unwrap();
    let line = format!("shm --sizes 4K {QUICK} --quiet");
    for (file, target) in [
        ("run.csv", "victim"),
        ("run.json", "victim"),
        ("latency.hlog", "victim"),
        ("run.csv", "nothing"),
    ] {
        let run = folder.join(format!("{file}-{target}"));
        fs::create_dir(&run).unwrap();
        symlink(folder.join(target), run.join(file)).unwrap();
        let result = run_in(folder, &format!("{line} --output {}", run.display()));
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("it already holds {file}")), "{said}");
    }
    // What is written besides: in place of the link.
    let run = folder.join("run");
    fs::create_dir(&run).unwrap();
    for (file, target) in [
        ("topology.json", "victim"),
        ("topology.json.new", "nothing"),
        ("report.html", "victim"),
        ("report.html.new", "victim"),
    ] {
        symlink(folder.join(target), run.join(file)).unwrap();
    }
    let result = run_in(folder, &format!("{line} --output run"));
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    for file in ["topology.json", "report.html"] {
        assert!(fs::symlink_metadata(run.join(file)).unwrap().is_file(), "{file}");
    }
    symlink(folder.join("victim"), folder.join("page.html")).unwrap();
    let result = run_in(folder, "report run -o page.html");
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    assert!(fs::symlink_metadata(folder.join("page.html")).unwrap().is_file());

    // A run that goes on does so in its own files.
    for file in ["run.csv", "latency.hlog", "run.json"] {
        let kept = folder.join(format!("kept-{file}"));
        fs::rename(run.join(file), &kept).unwrap();
        symlink(&kept, run.join(file)).unwrap();
        let before = fs::read(&kept).unwrap();
        let result = run_in(folder, &format!("{line} --resume run"));
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{file}: {said}");
        assert!(said.contains("symbolic link, and g2g writes through none"), "{file}: {said}");
        assert_eq!(fs::read(&kept).unwrap(), before);
        fs::remove_file(run.join(file)).unwrap();
        fs::rename(&kept, run.join(file)).unwrap();
    }

    let sweep = folder.join("sweep");
    fs::create_dir(&sweep).unwrap();
    symlink(folder.join("nothing"), sweep.join("sweep.toml")).unwrap();
    fs::write(
        folder.join("plan.toml"),
        "command = \"shm\"\nflags = \"--sizes 4K\"\n[[axis]]\nname = \"n\"\nvalues = [1]\n",
    )
    .unwrap();
    let result = run_in(folder, "sweep plan.toml --output sweep");
    assert_eq!(result.status.code(), Some(2), "{}", text(&result.stdout));
    assert!(!folder.join("nothing").exists());
    assert_eq!(fs::read(folder.join("victim")).unwrap(), b"precious");
}

#[test]
fn nothing_that_is_made_can_be_written_by_all() {
    let folder = tempfile::tempdir().unwrap();
    let program = program();
    let line = format!(
        "umask 0; exec {program} nccl --simulate p4d.24xlarge --gpus 0,1 --sizes 8K {QUICK} --quiet --output made/run"
    );
    let mut shell = std::process::Command::new("sh");
    let result = shell.args(["-c", &line]).current_dir(folder.path()).output().unwrap();
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
    let mut paths = Vec::new();
    below(&folder.path().join("made"), &mut paths);
    assert!(paths.len() >= 6, "{paths:?}");
    paths.extend(["made", "made/run", "made/run/nccl"].map(|name| folder.path().join(name)));
    for path in paths {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o002, 0, "{} has {mode:o}", path.display());
    }
}

#[test]
fn what_a_machine_calls_itself_is_not_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let machine = "schema = 1\nfrom = \"p4d.24xlarge\"\n[host]\nproduct = \"box\\u001b[2J\\u009b31m\\u202e<img src=x onerror=alert(1)>\"\n\
        hostname = \"a,b\\\"\\n</script><script>alert(1)</script>\"\n[[gpu]]\nname = \"GPU \\u001b]0;owned\\u0007 <b onclick='x'>\"\n";
    fs::write(folder.join("machine.toml"), machine).unwrap();
    let run =
        format!("p2p --simulate machine.toml --gpus 0,1 --sizes 4K {QUICK} --output run --verbose");
    for line in [
        &run,
        "topo --simulate machine.toml",
        "topo --simulate machine.toml --format json",
        "doctor --simulate machine.toml --verbose",
        "report run -o page.html",
        "compare run --by issuer --all",
    ] {
        let output = run_in(folder, line);
        assert!(output.status.code() <= Some(1), "{line}: {}", text(&output.stderr));
        for stream in [&output.stdout, &output.stderr] {
            let text = text(stream);
            let is_obeyed = |letter: char| {
                (letter.is_control() && !"\n\t".contains(letter)) || letter == '\u{202e}'
            };
            assert!(!text.contains(is_obeyed), "{line}: {text:?}");
        }
        if line.ends_with("json") {
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
        }
    }
    let page = fs::read_to_string(folder.join("page.html")).unwrap();
    for part in ["<img src=x", "<script>alert", "<b onclick"] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(page.contains("GPU") && page.contains("Content-Security-Policy"));
    let csv = fs::read_to_string(folder.join("run/run.csv")).unwrap();
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
}

#[test]
fn shared_memory_has_no_name_and_is_its_users_alone() {
    let names = shared_memory_names();
    let parent = start("shm --ranks 2 --sizes 64M --time-limit 60s --precision 0.01%");
    let segments = |pid: u32| -> Vec<PathBuf> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let is_segment =
            |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target.starts_with("/dev/shm"));
        entries.map(|entry| entry.path()).filter(is_segment).collect()
    };
    let ranks = || -> Vec<u32> { [parent.id()].into_iter().chain(children(&parent)).collect() };
    let has_segments = || ranks().len() > 1 && ranks().iter().all(|&pid| !segments(pid).is_empty());
    assert!(eventually(SOON, has_segments), "no rank shares memory");
    for pid in ranks() {
        for path in segments(pid) {
            let Ok(segment) = fs::metadata(&path) else { continue };
            assert_eq!(segment.mode() & 0o7777, 0o600, "{}", path.display());
            assert_eq!(segment.nlink(), 0, "{}", path.display());
        }
        // Only who may trace a process may look at its descriptors.
        let descriptors = fs::metadata(format!("/proc/{pid}/fd")).unwrap();
        assert_eq!(descriptors.mode() & 0o077, 0);
        // Its connections have no name either, and nobody listens.
        let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let sockets: Vec<String> = links
            .filter_map(|entry| fs::read_link(entry.path()).ok()?.to_str().map(str::to_owned))
            .filter_map(|link| {
                Some(link.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
            })
            .collect();
        assert!(!sockets.is_empty());
        for table in ["tcp", "tcp6", "udp", "udp6"] {
            let table = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
            let inodes = table.lines().filter_map(|line| line.split_whitespace().nth(9));
            assert!(!inodes.into_iter().any(|inode| sockets.iter().any(|own| own == inode)));
        }
        let unix = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap();
        for line in unix.lines() {
            let cells: Vec<&str> = line.split_whitespace().collect();
            if cells.get(6).is_some_and(|inode| sockets.iter().any(|own| own == inode)) {
                assert_eq!(cells.len(), 7, "a socket with a name: {line}");
            }
        }
    }
    let new = || {
        shared_memory_names().into_iter().any(|name| {
            !names.contains(&name)
                && name.to_string_lossy().contains("g2g")
                && !name.to_string_lossy().contains("fuzz")
        })
    };
    assert!(!new(), "{:?}", shared_memory_names());
    signal("TERM", parent.id());
    wait(parent);
}
