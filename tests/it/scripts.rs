//! The scripts for nodes and clusters: run for real as far as one machine can, and read otherwise.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use crate::common::{
    Rows, eventually, install,
    lab::{Lab, lab},
    program, text,
};
use serde_json::Value;
use tempfile::TempDir;

/// A bound in seconds on what ends by itself within a few, on a machine that is busy elsewhere.
const SOON: &str = "300";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A script of the repository with the words of `line`, for the g2g under test.
pub(crate) fn script(name: &str, line: &str) -> Command {
    let mut command = Command::new(root().join("scripts").join(name));
    command.args(line.split_whitespace()).env("G2G", program());
    command
}

pub(crate) fn finish(command: &mut Command) -> (Output, String) {
    let result = command.output().unwrap();
    let said = format!("{command:?}: {}{}", text(&result.stdout), text(&result.stderr));
    (result, said)
}

pub(crate) fn write_program(path: &Path, lines: &str) {
    let source = path.with_extension("sh");
    fs::write(&source, format!("#!/bin/sh\n{lines}\n")).unwrap();
    install(&source, path);
}

/// Hosts, and a folder with what reaches them.
struct Cluster {
    lab: Lab,
    folder: TempDir,
}

impl Cluster {
    /// Hosts that are reached as by ssh: nothing of this environment comes along. Each has so many
    /// GPUs, as its `nvidia-smi` counts them.
    fn up(gpus: &[usize]) -> Option<Self> {
        let lab = Lab::up(gpus.len(), "")?;
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join("bin");
        for folder in [&programs, &folder.path().join("start")] {
            fs::create_dir(folder).unwrap();
        }
        let arms: Vec<String> = (0..gpus.len())
            .map(|host| format!("{}) seq -f 'GPU %g: NVIDIA' {} ;;", lab.host(host), gpus[host]))
            .collect();
        write_program(
            &programs.join("nvidia-smi"),
            &format!("case $(hostname) in {} esac", arms.join(" ")),
        );
        let agent = format!(
            "exec env -i HOME=/ PATH={}:/usr/sbin:/usr/bin:/sbin:/bin {} agent \"$@\"",
            programs.display(),
            self::lab().get_program().display()
        );
        write_program(&folder.path().join("agent"), &agent);
        Some(Self { lab, folder })
    }

    /// `scripts/run-cluster` beside the hosts, by `mpirun`, with a host file in which `0`, `1`, …
    /// stand for the hosts.
    fn run(&self, mpirun: &str, hosts: &str, line: &str) -> (Output, String) {
        self.run_with(&[("G2G", program())], mpirun, hosts, line)
    }

    fn run_with(
        &self,
        variables: &[(&str, &str)],
        mpirun: &str,
        hosts: &str,
        line: &str,
    ) -> (Output, String) {
        let named = |line: &str| format!("{}-{line}\n", self.lab.name);
        let file = self.folder.path().join("hosts");
        fs::write(&file, hosts.lines().map(named).collect::<String>()).unwrap();
        let (options, line) = line.split_once("HOSTS").unwrap();
        let script = root().join("scripts/run-cluster");
        let mut command = self.lab.head();
        command.args(["timeout", SOON]).arg(script).args(options.split_whitespace());
        command
            .arg(file)
            .args(line.split_whitespace())
            .current_dir(self.folder.path().join("start"));
        command.env("G2G_MPIRUN", mpirun).env("G2G_RSH", self.folder.path().join("agent"));
        // The link on which the head is too.
        command.env("OMPI_MCA_btl_tcp_if_include", "eth1").env("HYDRA_IFACE", "eth1");
        command.envs(variables.iter().copied());
        let (result, said) = finish(&mut command);
        let is_gone = eventually(Duration::from_secs(20), || self.lab.processes().is_empty());
        assert!(is_gone, "{said} leaves {}", self.lab.processes());
        (result, said)
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("run")
    }
}

/// Open MPI 4 of Debian, and Open MPI 5 and MPICH 5 of the environments that scripts/test makes.
/// Not Debian's MPICH 4.0.2: between hosts its `MPI_Finalize` waits for ever in one of ten runs.
fn every_mpirun() -> [String; 3] {
    let environment = |name: &str| root().join("target").join(name).join("bin/mpirun");
    let [open_mpi, mpich] =
        ["openmpi", "mpich"].map(|name| environment(name).display().to_string());
    ["mpirun.openmpi".to_owned(), open_mpi, mpich]
}

#[test]
fn run_cluster_measures_between_all_hosts_by_every_launcher() {
    let Some(cluster) = Cluster::up(&[0, 0, 0]) else { return };
    // Both ways to write a number, and a host without GPUs has one rank.
    let hosts = "0 slots=1 max_slots=4 # the first\n1:1\n2";
    for mpirun in every_mpirun() {
        let output = cluster.output();
        let line = format!(
            "HOSTS rdma --provider tcp --operation write,ping-pong --sizes 64K --samples 20 \
             --time-limit 20ms --output {}",
            output.display()
        );
        let (result, said) = cluster.run(&mpirun, hosts, &line);
        assert_eq!(result.status.code(), Some(0), "{said}");
        let rows = Rows::read(&output);
        let mut flows: BTreeMap<[&str; 2], usize> = BTreeMap::new();
        for row in 0..rows.len() {
            assert_eq!(rows.cell(row, "status"), "ok", "{said}");
            let ends = ["source_host", "target_host"].map(|name| rows.cell(row, name));
            *flows.entry(ends).or_default() += 1;
        }
        // Both operations from each to each other one.
        assert_eq!((flows.len(), rows.len()), (6, 12), "{said}");
        assert!(flows.iter().all(|(ends, &rows)| ends[0] != ends[1] && rows == 2), "{flows:?}");
        // The first host of the file has rank 0.
        assert_eq!(rows.cell(0, "source_host"), cluster.lab.host(0), "{said}");
        fs::remove_dir_all(output).unwrap();
        // What g2g ends with is what the script ends with.
        let (result, said) = cluster.run(&mpirun, hosts, "HOSTS rdma --siz 64K");
        assert_eq!(result.status.code(), Some(2), "{said}");
        assert_eq!(said.matches("error: unexpected argument '--siz'").count(), 1, "{said}");
    }
}

#[test]
fn ranks_get_the_variables_that_steer_what_is_measured_and_no_others() {
    let Some(cluster) = Cluster::up(&[0, 0]) else { return };
    let prints = cluster.folder.path().join("prints");
    write_program(&prints, "env | sed \"s/^/$(hostname) /\"");
    let passed = ["FI_TEST", "OFI_NCCL_TEST", "NCCL_TEST", "CUDA_TEST", "LD_LIBRARY_PATH"];
    for mpirun in every_mpirun() {
        let mut variables = vec![("G2G", prints.to_str().unwrap()), ("G2G_TEST_SECRET", "/told")];
        variables.extend(passed.map(|name| (name, "/told")));
        let (result, said) = cluster.run_with(&variables, &mpirun, "0\n1", "HOSTS");
        assert_eq!(result.status.code(), Some(0), "{said}");
        let printed = text(&result.stdout);
        for host in (0..2).map(|number| cluster.lab.host(number)) {
            for name in passed {
                let line =
                    printed.lines().find(|line| line.starts_with(&format!("{host} {name}=")));
                assert!(line.is_some_and(|line| line.contains("/told")), "{name}: {said}");
            }
        }
        assert!(!printed.contains("G2G_TEST_SECRET"), "{said}");
    }
}

#[test]
fn a_host_gets_a_rank_for_each_gpu_and_one_that_has_lost_a_gpu_is_named() {
    let Some(cluster) = Cluster::up(&[2, 2, 1]) else { return };
    let line =
        "HOSTS rdma --provider tcp --sizes 64K --pattern all-pairs --operation write --dry-run";
    let (result, said) = cluster.run("mpirun.openmpi", "0\n1", line);
    assert_eq!(result.status.code(), Some(0), "{said}");
    assert!(said.contains(" -np 4 "), "{said}");
    let (result, said) = cluster.run("mpirun.openmpi", "0\n1\n2", line);
    assert_eq!(result.status.code(), Some(2), "{said}");
    let names = [2, 0].map(|host| cluster.lab.host(host));
    assert!(said.contains(&format!("{} has 1 GPUs, {} has 2 GPUs", names[0], names[1])), "{said}");
    let (result, said) = cluster.run("mpirun.openmpi", "0\n1\n2 slots=1", line);
    assert_eq!(result.status.code(), Some(0), "{said}");
    assert!(said.contains(" -np 5 "), "{said}");
}

#[test]
fn what_hosts_lack_is_said_in_one_sentence_before_anything_starts_and_copied_on_request() {
    let Some(cluster) = Cluster::up(&[0, 0, 0, 0]) else { return };
    let folder = cluster.folder.path().join("program");
    fs::create_dir(&folder).unwrap();
    let program = folder.join("g2g");
    install(Path::new(crate::common::program()), &program);
    // Two hosts have a folder of their own there: one with nothing in it, one with another program.
    let mount = format!("mount -t tmpfs tmpfs {}", folder.display());
    cluster.lab.on(1, &mount);
    cluster.lab.on(2, &format!("{mount} && cp /bin/true {}", program.display()));
    // The fourth has the program, but not the folder beside it in which all is started.
    let (program, real) = (program.to_str().unwrap(), crate::common::program());
    let above = cluster.folder.path().display();
    let own = format!(
        "mount -t tmpfs tmpfs {above} && mkdir {} && cp {real} {program}",
        folder.display()
    );
    cluster.lab.on(3, &own);
    let variables = [("G2G", program)];
    let line = "rdma --provider tcp --sizes 64K --operation write --samples 5 --time-limit 50ms";
    let output = cluster.output();
    let line = format!("HOSTS {line} --output {}", output.display());
    let (result, said) = cluster.run_with(&variables, "mpirun.openmpi", "0\n1\n2\n3\n9", &line);
    assert_eq!(result.status.code(), Some(2), "{said}");
    let error = text(&result.stderr);
    assert_eq!(error.lines().count(), 1, "{said}");
    for part in [
        format!("{} has no {program}", cluster.lab.host(1)),
        format!("{} has another {program}", cluster.lab.host(2)),
        format!("{} has no folder {above}/start", cluster.lab.host(3)),
        format!("{} does not answer", cluster.lab.host(9)),
    ] {
        assert!(error.contains(&part), "{part}: {said}");
    }
    assert!(!error.contains(&format!("{} ", cluster.lab.host(0))), "{said}");
    assert!(!output.exists(), "{said}");

    let line = format!("--copy {line}");
    let (result, said) = cluster.run_with(&variables, "mpirun.openmpi", "0\n1\n2", &line);
    assert_eq!(result.status.code(), Some(0), "{said}");
    assert_eq!(said.matches("copying g2g to").count(), 2, "{said}");
    assert_eq!(Rows::read(&output).len(), 6, "{said}");
}

#[test]
fn run_cluster_refuses_bad_input_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    for (options, hosts, part) in [
        ("", "HOSTS", "HOSTFILE"),
        ("--cpoy FILE", "a", "unknown option --cpoy"),
        ("/absent", "a", "cannot read the host file /absent"),
        ("FILE", "# nobody\n\n", "names no host"),
        ("FILE", "a\nb slot=8", "line 2 of FILE: 'slot=8' is not understood"),
        ("FILE", "a slots=0", "'0' is no count of ranks"),
        ("FILE", "a:", "'' is no count of ranks"),
        ("FILE", "a:x", "'x' is no count of ranks"),
        ("FILE", "a\n-oProxyCommand=x", "line 2 of FILE: '-oProxyCommand=x' is no name"),
        ("FILE", "a:1\na:1", "line 2 of FILE: a is there twice"),
        ("FILE", "a", "G2G_RSH=/absent/rsh is no program"),
    ] {
        fs::write(&file, hosts).unwrap();
        let name = file.display().to_string();
        let mut command = script("run-cluster", &options.replace("FILE", &name));
        command.env("G2G_RSH", "/absent/rsh");
        let (result, said) = finish(&mut command);
        assert_eq!(result.status.code(), Some(2), "{said}");
        let error = text(&result.stderr);
        let part = part.replace("FILE", if part == "HOSTFILE" { "FILE" } else { &name });
        assert!(error.contains(&part) && error.lines().count() == 1, "{part}: {said}");
    }
}

#[test]
fn run_node_leaves_a_folder_with_every_part() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("node");
    let line = "--simulate p4d.24xlarge --gpus 0,1 --sizes 1M --engine ce --operation copy \
                --time-limit 20ms --quiet --output";
    let mut command = script("run-node", line);
    command.arg(&output).current_dir(&folder);
    let (result, said) = finish(&mut command);
    assert_eq!(result.status.code(), Some(0), "{said}");
    assert!(said.contains(&format!("results: {}", output.display())), "{said}");
    let topology = fs::read_to_string(output.join("topo.json")).unwrap();
    let topology: Value = serde_json::from_str(&topology).unwrap();
    assert_eq!(topology["gpus"].as_array().unwrap().len(), 8, "{said}");
    assert!(fs::read_to_string(output.join("topo.txt")).unwrap().contains("A100"), "{said}");
    for (part, has, has_not) in [
        ("run", "local one-way", "p2p both-ways"),
        ("patterns", "p2p both-ways", "p2p one-way"),
        ("ranks", "p2p one-way", "p2p both-ways"),
    ] {
        let rows = Rows::read(&output.join(part));
        let is =
            |row: usize| format!("{} {}", rows.cell(row, "transport"), rows.cell(row, "pattern"));
        let kinds: Vec<String> = (0..rows.len()).map(is).collect();
        assert!(kinds.iter().any(|kind| kind == has), "{part}: {kinds:?}");
        assert!(!kinds.iter().any(|kind| kind == has_not), "{part}: {kinds:?}");
    }
    let json = fs::read_to_string(output.join("ranks/run.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["provenance"]["ranks"], 8, "a rank for each GPU");
    // What is there is not mixed with what comes.
    let mut command = script("run-node", line);
    command.arg(&output);
    let (result, said) = finish(&mut command);
    assert_eq!(result.status.code(), Some(2), "{said}");
    assert!(said.contains("is there already"), "{said}");
}

#[test]
fn a_bad_case_in_one_part_of_run_node_leaves_the_others() {
    let folder = tempfile::tempdir().unwrap();
    // The parts end as the first word of each is told to, before g2g's answer to `topo` comes.
    let program = folder.path().join("g2g");
    let real = crate::common::program();
    write_program(
        &program,
        &format!("case \"$*\" in topo*) exec {real} \"$@\" ;; *$FAILS*) exit $CODE ;; esac"),
    );
    for (fails, code, parts) in [("/patterns", "1", 3), ("/run ", "2", 1), ("/ranks", "1", 3)] {
        let output = folder.path().join(format!("{}-{code}", fails.trim_matches(['/', ' '])));
        let mut command = script("run-node", "--simulate p4d.24xlarge --sizes 1M --output");
        command.arg(&output).env("G2G", &program).env("FAILS", fails).env("CODE", code);
        let (result, said) = finish(&mut command);
        assert_eq!(result.status.code(), Some(code.parse().unwrap()), "{said}");
        assert_eq!(said.matches("== ").count(), parts, "{said}");
    }
}

#[test]
fn the_job_for_slurm_hands_over_what_srun_needs() {
    let file = root().join("scripts/cluster.sbatch");
    let lines = fs::read_to_string(&file).unwrap();
    let options: BTreeMap<&str, &str> = lines
        .lines()
        // sbatch reads no further than the first command.
        .take_while(|line| line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("#SBATCH --"))
        .map(|option| option.split_once('=').unwrap_or((option, "")))
        .collect();
    assert_eq!(options.len(), lines.matches("#SBATCH").count(), "{options:?}");
    assert_eq!(options["ntasks-per-node"], options["gpus-per-node"]);
    assert_eq!((options["exclusive"], options["propagate"]), ("", "NONE"));
    assert!(options.contains_key("nodes") && options.contains_key("time"), "{options:?}");

    // An srun that starts two ranks by MPICH, and refuses what it does not know.
    let folder = tempfile::tempdir().unwrap();
    let mpirun = root().join("target/mpich/bin/mpirun");
    let srun = format!(
        "while :; do case $1 in --mpi=pmi2|--cpu-bind=none|--gpu-bind=none|--kill-on-bad-exit=1) \
         shift ;; -*) echo \"unknown option $1\" >&2; exit 9 ;; *) break ;; esac; done\n\
         exec {} -np 2 \"$@\"",
        mpirun.display()
    );
    write_program(&folder.path().join("srun"), &srun);
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let output = folder.path().join("run");
    let line = "shm --numa 0:0 --sizes 64K --samples 5 --output";
    let mut command = script("cluster.sbatch", line);
    command.arg(&output).current_dir(&folder).env("PATH", path);
    command.env("G2G_SRUN_MPI", "pmi2").env("SLURM_SUBMIT_DIR", root());
    let (result, said) = finish(&mut command);
    assert_eq!(result.status.code(), Some(0), "{said}");
    let rows = Rows::read(&output);
    assert_eq!((rows.len(), rows.cell(0, "status")), (2, "ok"), "{said}");
}

#[test]
fn the_job_for_kubernetes_has_what_rdma_and_shared_memory_need() {
    let job = fs::read_to_string(root().join("scripts/mpijob.yaml")).unwrap();
    let job: Value = serde_saphyr::from_str(&job).unwrap();
    assert_eq!(
        (&job["apiVersion"], &job["kind"]),
        (&"kubeflow.org/v2beta1".into(), &"MPIJob".into())
    );
    let spec = &job["spec"];
    let pod = |role: &str| &spec["mpiReplicaSpecs"][role]["template"]["spec"];
    let (launcher, worker) = (&pod("Launcher")["containers"][0], &pod("Worker")["containers"][0]);
    let limits = &worker["resources"]["limits"];
    // A rank for each GPU, and both kinds of devices as whole numbers, which Kubernetes wants.
    assert_eq!(spec["slotsPerWorker"], limits["nvidia.com/gpu"]);
    assert!(limits["vpc.amazonaws.com/efa"].is_u64() && limits["hugepages-2Mi"].is_string());
    assert_eq!(worker["securityContext"]["capabilities"]["add"][0], "IPC_LOCK");
    assert_eq!(launcher["image"], worker["image"]);
    // Shared memory of more than a container has by itself, and within the pod's own.
    assert_eq!(worker["volumeMounts"][0]["mountPath"], "/dev/shm");
    let volume = &pod("Worker")["volumes"][0];
    assert_eq!(volume["name"], worker["volumeMounts"][0]["name"]);
    assert_eq!(volume["emptyDir"]["medium"], "Memory");
    let gibibytes = |text: &Value| -> u32 {
        text.as_str().unwrap().strip_suffix("Gi").unwrap().parse().unwrap()
    };
    assert!(gibibytes(&volume["emptyDir"]["sizeLimit"]) < gibibytes(&limits["memory"]));
    assert_eq!(limits["memory"], worker["resources"]["requests"]["memory"]);
    // What the launcher calls is a script of this repository, with options that g2g knows.
    let command = launcher["command"].as_array().unwrap();
    let name = Path::new(command[0].as_str().unwrap());
    assert!(root().join("scripts").join(name.file_name().unwrap()).exists());
    assert_eq!(command[1], "/etc/mpi/hostfile");
    let options = launcher["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let options = options.filter(|option| !option.starts_with("--output="));
    let folder = tempfile::tempdir().unwrap();
    let mut command = crate::common::g2g();
    command.args(options).args("--numa 0:0 --provider tcp --operation copy,write".split(' '));
    command.args("--sizes 64 --samples 2 --time-limit 20ms --output".split(' '));
    command.arg(folder.path().join("run"));
    let (result, said) = finish(&mut command);
    assert_eq!(result.status.code(), Some(0), "{said}");
    let rows = Rows::parse(&text(&result.stdout));
    let measured = (0..rows.len()).filter(|&row| rows.cell(row, "status") == "ok").count();
    assert_eq!(measured, 4, "{said}");
}

#[test]
fn what_is_built_here_runs_with_glibc_2_34_and_what_needs_a_newer_one_is_refused() {
    let program = program();
    let library = Path::new(program).with_file_name("libsimgpu.so");
    let check = |version: &str| {
        let mut command = script("package", "--check");
        command.arg(version).arg(program).arg(&library);
        finish(&mut command)
    };
    // That of Amazon Linux 2023.
    let (result, said) = check("2.34");
    assert_eq!(result.status.code(), Some(0), "{said}");
    let (result, said) = check("2.3");
    assert_eq!(result.status.code(), Some(1), "{said}");
    let error = text(&result.stderr);
    assert!(error.starts_with(&format!("scripts/package: {program} needs glibc 2.")), "{said}");
    assert!(error.ends_with(", which is newer than 2.3\n"), "{said}");
}

#[test]
fn package_refuses_bad_input_in_one_sentence() {
    for (line, part) in [
        ("x86-64", "unknown argument x86-64: there are x86_64, aarch64, --hardware and --check"),
        ("x86_64 --check", "unknown argument --check"),
        ("--hardware arm", "unknown argument arm"),
        ("--check", "'' is no version of glibc"),
        ("--check 2 /bin/sh", "'2' is no version of glibc"),
        ("--check 2.17", "--check needs the files to look at"),
        ("--check 2.17 /absent", "/absent is no program or library"),
        ("--check 2.17 Cargo.toml", "Cargo.toml is no program or library"),
    ] {
        let mut command = script("package", line);
        command.current_dir(root());
        let (result, said) = finish(&mut command);
        assert_eq!(result.status.code(), Some(2), "{said}");
        let error = text(&result.stderr);
        assert!(error.contains(part) && error.lines().count() == 1, "{part}: {said}");
    }
}
