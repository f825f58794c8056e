//! scripts/check/: run for real with a simulated machine, and with stand-ins for what starts them.

use std::{fs, path::Path, process::Command};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    common::{program, text},
    scripts::{finish, write_program},
};

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check").join(name)
}

/// A folder with programs that stand in for others: a g2g that always simulates, with `fault`, and
/// some that keep what they are told in a file with their name.
fn programs(fault: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let machine = folder.path().join("machine.toml");
    let lines = format!("schema = 1\nfrom = \"p5.48xlarge\"\nname = \"test\"\n{fault}");
    fs::write(&machine, lines).unwrap();
    let lines = format!("exec {} \"$@\" --simulate {}", program(), machine.display());
    write_program(&folder.path().join("g2g"), &lines);
    for name in ["scontrol", "logger", "aws"] {
        let told = folder.path().join(name).with_extension("told");
        write_program(&folder.path().join(name), &format!("echo \"$@\" >>{}", told.display()));
    }
    write_program(&folder.path().join("curl"), "for last; do :; done; echo \"of ${last##*/}\"");
    folder
}

fn told(folder: &TempDir, name: &str) -> String {
    fs::read_to_string(folder.path().join(name).with_extension("told")).unwrap_or_default()
}

fn command(path: &Path, folder: &TempDir) -> Command {
    let mut command = Command::new(path);
    let paths = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    command.env("PATH", paths).env("G2G", folder.path().join("g2g"));
    command.env("G2G_LOGS", folder.path().join("logs")).env_remove("SLURM_JOB_GPUS");
    command
}

const SLOW: &str = "[[fault.slow]]\nsource = 1\ntarget = 0\nfraction = 0.5\n";

#[test]
fn the_check_of_a_node_says_in_a_line_what_is_wrong_and_keeps_the_last_results() {
    let healthy = programs("");
    for number in 0..12 {
        fs::create_dir_all(healthy.path().join(format!("logs/check-202001{number:02}T000000Z-1")))
            .unwrap();
    }
    let other = healthy.path().join("logs/20200101T000000Z-p5");
    fs::create_dir(&other).unwrap();
    let (result, said) = finish(command(&file("node"), &healthy).args(["--gpus", "0,1"]));
    assert_eq!(
        (result.status.code(), text(&result.stdout)),
        (Some(0), "g2g: fit\n".into()),
        "{said}"
    );
    let kept = fs::read_dir(healthy.path().join("logs")).unwrap();
    let kept: Vec<_> = kept.map(|entry| entry.unwrap().path()).collect();
    // What is not its own stays.
    assert!(kept.contains(&other), "{kept:?}");
    assert_eq!(kept.len(), 11, "{kept:?}");
    assert!(kept.iter().any(|folder| folder.join("check.json").exists()), "{kept:?}");

    let slow = programs(SLOW);
    let (result, said) = finish(command(&file("node"), &slow).args(["--gpus", "0,1"]));
    let line = text(&result.stdout);
    assert_eq!((result.status.code(), line.lines().count()), (Some(1), 1), "{said}");
    assert!(line.contains(" is unfit: p2p copy ") && line.contains("GPU 1 -> GPU 0"), "{line}");

    let (result, said) = finish(command(&file("node"), &slow).args(["--gpus", "9"]));
    assert_eq!(result.status.code(), Some(2), "{said}");
    assert!(text(&result.stdout).starts_with("g2g: error: "), "{said}");

    let (result, said) = finish(command(&file("node"), &slow).env("G2G_LIMIT", "0.2"));
    assert_eq!(result.status.code(), Some(124), "{said}");
    assert_eq!(text(&result.stdout), "g2g: the check took longer than 0.2 s\n");
}

#[test]
fn slurm_drains_a_node_that_is_unfit_and_no_other() {
    let far = SLOW.replace("source = 1\ntarget = 0", "source = 5\ntarget = 4");
    for (fault, gpus, drained) in [
        ("", "0,1", None),
        (SLOW, "0,1", Some("GPU 1 -> GPU 0")),
        (&far, "4,5", Some("GPU 5 -> GPU 4")),
        (SLOW, "2,3", None),
        (SLOW, "9", None),
    ] {
        let folder = programs(fault);
        let mut prolog = command(&file("slurm"), &folder);
        prolog.env("SLURM_JOB_GPUS", gpus).env("SLURMD_NODENAME", "node7");
        // As Slurm has it for the job.
        prolog.env("CUDA_VISIBLE_DEVICES", gpus);
        let (result, said) = finish(&mut prolog);
        let code = i32::from(drained.is_some());
        assert_eq!(result.status.code(), Some(code), "{fault} {gpus}: {said}");
        let told = told(&folder, "scontrol");
        match drained {
            Some(pair) => {
                let start = "update nodename=node7 state=drain reason=g2g: ";
                assert!(told.starts_with(start) && told.contains(pair), "{told}");
            }
            None => assert_eq!(told, "", "{fault} {gpus}"),
        }
    }
    // A job without GPUs.
    let (result, said) = finish(&mut command(&file("slurm"), &programs(SLOW)));
    assert_eq!(result.status.code(), Some(0), "{said}");
}

#[test]
fn an_instance_that_is_unfit_at_its_start_is_replaced() {
    for (fault, is_replaced) in [("", false), (SLOW, true)] {
        let folder = programs(fault);
        let data = fs::read_to_string(file("user-data")).unwrap();
        let node = format!("{} --gpus 0,1", file("node").display());
        let lines = data.replace("/opt/g2g/scripts/check/node", &node);
        assert!(lines.contains(&node));
        let path = folder.path().join("user-data");
        write_program(&path, &lines);
        let (result, said) = finish(Command::new("bash").arg(&path).envs(
            command(&path, &folder).get_envs().filter_map(|(name, value)| Some((name, value?))),
        ));
        assert_eq!(result.status.code(), Some(0), "{said}");
        let told = told(&folder, "aws");
        assert_eq!(told.contains("--instance-id of instance-id"), is_replaced, "{told}{said}");
        assert_eq!(told.contains("--region of region"), is_replaced, "{told}{said}");
    }
}

#[test]
fn node_health_check_takes_a_node_that_is_not_known_to_be_fit_off_line() {
    // What stands for all nodes, with a check_cmd_status as NHC has it.
    let lines = fs::read_to_string(file("nhc.conf")).unwrap();
    let lines = lines.lines().filter_map(|line| line.strip_prefix("* || "));
    let node = file("node").display().to_string();
    let lines: Vec<String> =
        lines.map(|line| line.replace("/opt/g2g/scripts/check/node", &node)).collect();
    assert_eq!(lines.len(), 2);
    let checked = "check_cmd_status() {\n[ \"$1 $3 $4\" = '-t -r 0' ] || exit 9\nlocal limit=$2\n\
                   shift 4\ntimeout \"$limit\" \"$@\" --gpus 0,1\n}\n";
    for (fault, code) in [("", 0), (SLOW, 1)] {
        let folder = programs(fault);
        let line = format!("{checked}{}", lines.join("\n"));
        let (result, said) = finish(command(Path::new("bash"), &folder).args(["-c", &line]));
        assert_eq!(result.status.code(), Some(code), "{said}");
    }
}

#[test]
fn the_job_for_kubernetes_checks_one_node_once_and_ends_with_its_reason() {
    let job = fs::read_to_string(file("job.yaml")).unwrap();
    let job: Value = serde_saphyr::from_str(&job.replace("NODE", "node7")).unwrap();
    assert_eq!((&job["apiVersion"], &job["kind"]), (&"batch/v1".into(), &"Job".into()));
    assert_eq!(
        (&job["metadata"]["name"], &job["spec"]["backoffLimit"]),
        (&"g2g-check-node7".into(), &0.into())
    );
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"]["kubernetes.io/hostname"], "node7");
    assert_eq!(pod["restartPolicy"], "Never");
    let container = &pod["containers"][0];
    assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError");
    assert!(container["resources"]["limits"]["nvidia.com/gpu"].is_u64());
    assert_eq!(container["command"][0], "/opt/g2g/scripts/check/node");
}
