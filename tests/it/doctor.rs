//! `g2g doctor` from outside: on healthy machines of every kind, and on machines with one defect
//! each, which it has to name, and nothing else.

use std::fs;

use crate::common::{g2g, mpi::every_launcher, run, text};
use serde_json::Value;

/// What the doctor has said.
struct Answer {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Answer {
    /// Of the machine that `machine` describes, with the words of `line` and with these variables
    /// only: none that the test's own environment has for NCCL and its like.
    fn of(machine: &str, line: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine.toml");
        fs::write(&file, format!("schema = 1\n{machine}")).unwrap();
        Self::on(file.to_str().unwrap(), line, variables)
    }

    fn on(machine: &str, line: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = g2g();
        command.args(["doctor", "--simulate", machine]).args(line.split_whitespace());
        command.env_clear().envs(variables.iter().copied());
        let output = command.output().unwrap();
        let code = output.status.code().unwrap_or(-1);
        Self { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|err| panic!("{err}: {}{}", self.stdout, self.stderr))
    }

    /// The findings with these verdicts: the check, and all its sentences.
    fn findings(&self, verdicts: &[&str]) -> Vec<(String, String)> {
        let all = self.json()["findings"].clone();
        let is_wanted = |finding: &&Value| verdicts.contains(&finding["verdict"].as_str().unwrap());
        let word = |finding: &Value, key: &str| finding[key].as_str().unwrap_or("").to_owned();
        all.as_array()
            .unwrap()
            .iter()
            .filter(is_wanted)
            .map(|finding| {
                let sentences = ["seen", "means", "remedy"].map(|key| word(finding, key));
                (word(finding, "check"), sentences.join(" | "))
            })
            .collect()
    }

    /// Fails unless there is exactly one finding that is not fine, of this check and verdict, with
    /// all these words.
    fn is_only(&self, verdict: &str, check: &str, words: &[&str], what: &str) {
        let bad = self.findings(&["problem", "note", "cannot-tell"]);
        assert_eq!(bad.len(), 1, "{what}: {bad:#?}");
        assert_eq!(self.findings(&[verdict]).len(), 1, "{what}: {bad:#?}");
        let (found, sentences) = &bad[0];
        assert_eq!(found, check, "{what}: {sentences}");
        for word in words {
            assert!(sentences.contains(word), "{what}: no {word:?} in {sentences}");
        }
        assert_eq!(self.code, i32::from(verdict == "problem"), "{what}");
    }
}

#[test]
fn healthy_machines_have_no_problem() {
    for machine in [
        "p3dn.24xlarge",
        "p4d.24xlarge",
        "p5.48xlarge",
        "p5.4xlarge",
        "p5en.48xlarge",
        "p6-b200.48xlarge",
        "g5.48xlarge",
        "g6.48xlarge",
        "g6e.48xlarge",
        "g7e.8xlarge",
        "p6e-gb200.36xlarge",
    ] {
        let answer = Answer::on(machine, "--json", &[]);
        let bad = answer.findings(&["problem", "cannot-tell"]);
        assert!(bad.is_empty() && answer.code == 0, "{machine}: {bad:#?}");
        let json = answer.json();
        assert_eq!(json["simulated"], true);
        assert!(answer.findings(&["ok"]).len() > 12, "{machine}: too little was looked at");
        let notes = answer.findings(&["note"]);
        // Nobody knows whether the driver of this type grants peer access.
        let expected = if machine.starts_with("g6e") { 1 } else { 0 };
        assert_eq!(notes.len(), expected, "{machine}: {notes:#?}");
    }
}

/// A machine, a defect of it, the verdict, the check that has to find it, and words that it has to
/// say.
type Planted = (&'static str, &'static str, &'static str, &'static str, &'static [&'static str]);

const P5: &str = "from = 'p5.48xlarge'";
const P4D: &str = "from = 'p4d.24xlarge'";
const GB200: &str = "from = 'p6e-gb200.36xlarge'";

#[rustfmt::skip]
const DEFECTS: &[Planted] = &[
    (P5, "[[gpu]]\nordinals = [3]\nnvlinks_down = [2, 5]",
     "problem", "instance", &["NVLinks of GPU 3: 16 up", "2, 5"]),
    (P5, "[[gpu]]\nordinals = [2]\nmig = true", "problem", "mig", &["GPU 2"]),
    (P5, "[[gpu]]\nordinals = [2]\nfabric = \"in-progress\"",
     "problem", "fabric-manager", &["GPU 2", "nv-fabricmanager runs"]),
    (P5, "[[gpu]]\nordinals = [2]\nclique = 7",
     "problem", "fabric", &["GPU 2 in 7", "several cliques"]),
    (P5, "[[gpu]]\nordinals = [4]\nthrottle = [\"hw-slowdown\"]",
     "problem", "gpu-condition", &["GPU 4", "hw_slowdown"]),
    (P5, "[[gpu]]\nordinals = [4]\necc_errors = 3",
     "problem", "gpu-condition", &["GPU 4", "3 errors"]),
    (P5, "[[host.file]]\npath = '/dev/kmsg'\ntext = \"4,9,1,-;NVRM: Xid (PCI:0000:53:00): 79, pid=1\\n\"",
     "problem", "xid", &["Xid 79 of the GPU at 0000:53:00, 1 time", "NVIDIA's list"]),
    (P5, "[[host.file]]\npath = '/dev/kmsg'\ntext = \"4,9,1,-;NVRM: Xid (PCI:0000:53:00): 31, pid=1\\n\"",
     "note", "xid", &["Xid 31", "a program"]),
    (P5, "[[gpu]]\nordinals = [6]\npcie_lanes = 8",
     "problem", "instance", &["PCIe lanes of GPU 6: 8, 16"]),
    (P5, "[[pair]]\nsource = 1\ntarget = 2\nread_allowed = false\nwrite_allowed = false",
     "problem", "peer-access", &["2 of 56", "GPU 1 to GPU 2", "NVLinks"]),
    (P5, "[[pair]]\nsource = 4\ntarget = 0\nread_allowed = false",
     "problem", "peer-access", &["GPU 0 to GPU 4"]),
    (P5, "[host]\niommu = true",
     "problem", "iommu", &["root complex", "iommu=pt"]),
    (P5, "[host]\nshm_mib = 64",
     "problem", "shared-memory", &["64.0 MiB", "--shm-size"]),
    (P5, "[host]\nmemlock_kib = 64",
     "problem", "locked-memory", &["64.0 KiB", "ulimit -l unlimited"]),
    (P5, "gpu_count = 7",
     "problem", "instance", &["GPUs: 7, 8 expected", "Xid 79"]),
    (P5, "[[nic]]\nindices = [9]\nmissing = true",
     "problem", "instance", &["EFA: 31, 32 expected"]),
    (P5, "[[nic]]\nindices = [7]\nstate = 'down'",
     "problem", "rdma-ports", &["is DOWN"]),
    (P5, "[host]\nmodules_absent = ['efa_nv_peermem']\nkernel = '5.10.0-1031-aws'",
     "problem", "gpudirect-rdma", &["5.10.0", "5.12", "nvidia_peermem"]),
    (P5, "[host]\nofi_nccl = 'none'",
     "problem", "nccl-plugin", &["TCP sockets"]),
    (P5, "[host]\nnccl = 'none'",
     "problem", "nccl", &["libnccl.so.2"]),
    (P5, "[host]\nlibfabric = 'none'",
     "problem", "libfabric", &["no libfabric"]),
    (P5, "[host]\ncuda_runtime = 'none'",
     "problem", "libfabric", &["no libcudart.so", "FI_HMEM", "LD_LIBRARY_PATH"]),
    (P5, "[host]\nlibfabric = '1.16.1'",
     "problem", "libfabric", &["1.16.1", "1.18"]),
    (P5, "[host]\nlibfabric = '1.19.0'",
     "note", "libfabric", &["1.19.0", "dma-bufs"]),
    (P5, "[host]\ngovernor = 'powersave'",
     "note", "cpu-governor", &["powersave on 192 CPUs", "performance"]),
    (P5, "confidential_computing = true",
     "problem", "confidential-computing", &["encrypted"]),
    (GB200, "[host]\nimex = false",
     "problem", "imex", &["no IMEX channel"]),
    (P4D, "[[fault.call]]\n\
      name = 'cuInit'\n\
      code = 802\n\
      always = true\n\
      [host]\n\
      fabric_manager = false",
     "problem", "fabric-manager", &["802", "nv-fabricmanager does not run", "systemctl status nvidia-fabricmanager"]),
    (P4D, "[[fault.call]]\nname = 'cuInit'\ncode = 803\nalways = true",
     "problem", "driver", &["803", "no GPU can be used"]),
    (P4D, "[[host.file]]\npath = '/sys/fs/cgroup/user.slice/memory.max'\ntext = \"8589934592\\n\"",
     "note", "control-group", &["8.0 GiB"]),
    (P4D, "[[host.file]]\npath = '/sys/fs/cgroup/user.slice/cpu.max'\ntext = \"400000 100000\\n\"",
     "note", "control-group", &["4 CPUs"]),
    (P4D, "[[host.file]]\n\
      path = '/proc/self/status'\n\
      text = \"Uid:\\t0\\t0\\n\
      CapEff:\\ta80425fb\\n\
      Seccomp:\\t2\\n\
      \"",
     "note", "memory-policy", &["get_mempolicy", "--cap-add SYS_NICE"]),
    (P4D, "[[host.file]]\npath = '/dev/infiniband/uverbs2'\nabsent = true",
     "problem", "rdma-devices", &["4 RDMA devices", "3 files"]),
    (P4D, "[[fault.call]]\nname = 'cuDeviceGetAttribute'\ncode = 999\nalways = true",
     "problem", "driver", &["cuDeviceGetAttribute", "no GPU can be used"]),
    (P4D, "[[host.file]]\npath = '/proc/self/cgroup'\ntext = \"4:cpu:/a\\n\"\n\
      [[host.file]]\npath = '/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us'\ntext = \"400000\\n\"\n\
      [[host.file]]\npath = '/sys/fs/cgroup/cpu/a/cpu.cfs_period_us'\ntext = \"100000\\n\"",
     "note", "control-group", &["4 CPUs"]),
    (P4D, "[host]\nofi_nccl = 'none'\n\
      [[host.file]]\npath = '/usr/lib/libnccl-net.so'\ntext = 'NET/IB'",
     "problem", "nccl-plugin", &["not found"]),
    (P4D, "[[host.file]]\npath = '/etc/ld.so.conf.d/100_ofinccl.conf'\nabsent = true",
     "problem", "nccl-plugin", &["not where the loader looks", "LD_LIBRARY_PATH"]),
    (P4D, "[[host.file]]\n\
      path = '/usr/lib/libnccl.so.2'\n\
      link = 'libnccl.so.2.18.1'\n\
      [[host.file]]\n\
      path = '/usr/lib/libnccl.so.2.18.1'\n\
      text = ''",
     "note", "nccl", &["several of NCCL", "2.18.1"]),
    (P5, "[[gpu]]\nordinals = [3]\nmultiprocessors = 131",
     "problem", "gpus-alike", &["multiprocessors: 131 (GPU 3), 132 (the other 7)"]),
    (P5, "[[gpu]]\nordinals = [3]\nmemory_mib = 40960",
     "problem", "gpus-alike", &["memory: 40.0 GiB (GPU 3), 80.0 GiB (the other 7)"]),
    (P5, "[[gpu]]\nordinals = [3]\nsm_clock_mhz = 1500",
     "problem", "gpus-alike", &["highest SM clock: 1500 MHz (GPU 3), "]),
    (P5, "[[gpu]]\nordinals = [3]\nmemory_clock_mhz = 1000",
     "problem", "gpus-alike", &["highest memory clock: 1000 MHz (GPU 3), "]),
    (P5, "[[gpu]]\nordinals = [3]\npower_limit_default_w = 350",
     "problem", "gpus-alike", &["default power limit: 350 W (GPU 3), 700 W (the other 7)"]),
    (P5, "[[gpu]]\nordinals = [3, 5]\npower_limit_w = 400",
     "problem", "power-limit", &["GPU 3 400 W of 700 W, GPU 5 400 W", "-pl"]),
    (P5, "[[gpu]]\nordinals = [3]\necc = false",
     "problem", "gpus-alike", &["ECC: off (GPU 3), on (the other 7)"]),
    (P5, "[[gpu]]\nordinals = [3]\npersistence = false",
     "problem", "gpus-alike", &["persistence mode: off (GPU 3), "]),
    (P5, "[[gpu]]\nordinals = [3]\ncompute_mode = 'prohibited'",
     "problem", "gpus-alike", &["compute mode: prohibited (GPU 3), default (the other 7)"]),
    (P5, "[[gpu]]\nordinals = [3]\nvbios = '96.00.1'",
     "note", "gpus-alike", &["VBIOS: 96.00.1 (GPU 3), 0.0 (the other 7)"]),
    (P5, "[[gpu]]\nordinals = [3]\ninforom = 'G520'",
     "note", "gpus-alike", &["InfoROM: G520 (GPU 3), "]),
    (P5, "[[gpu]]\nordinals = [3]\nname = 'NVIDIA A100'\nsm_clock_mhz = 1410",
     "note", "gpus-alike", &["several models: 1 × NVIDIA A100, 7 × NVIDIA H100"]),
    (P5, "[[gpu]]\nordinals = [3]\npcie_generation = 3\npcie_generation_max = 3",
     "problem", "gpus-alike", &["PCIe generation: 3 (GPU 3), 5 (the other 7)"]),
    (P5, "[[nic]]\nindices = [4]\nrate_gbps = 50",
     "problem", "interfaces-alike", &["rate: 50 Gbit/s (rdmap68s0), 100 Gbit/s (the other 31)"]),
    (P5, "[[host.file]]\npath = '/sys/class/infiniband/rdmap65s0/fw_ver'\ntext = \"1.2\\n\"",
     "note", "interfaces-alike", &["firmware: 1.2 (rdmap65s0), "]),
    (P5, "[[host.file]]\npath = '/sys/bus/pci/devices/0000:41:00.0/current_link_width'\ntext = '8'",
     "problem", "interfaces-alike", &["PCIe link: PCIe5 x8 (rdmap65s0), "]),
    (P5, "[[host.file]]\npath = '/sys/bus/pci/devices/0000:41:00.0/numa_node'\ntext = \"-1\\n\"",
     "problem", "numa-nodes", &["rdmap65s0 (numa_node is -1)", "2"]),
    (P4D, "[[host.file]]\npath = '/sys/bus/pci/devices/0000:40:00.0/current_link_width'\ntext = '8'\n\
      [[host.file]]\npath = '/sys/bus/pci/devices/0000:41:00.0/current_link_width'\ntext = '8'\n\
      [[host.file]]\npath = '/sys/bus/pci/devices/0000:42:00.0/current_link_width'\ntext = '8'\n\
      [[host.file]]\npath = '/sys/bus/pci/devices/0000:43:00.0/current_link_width'\ntext = '8'",
     "problem", "rdma-ports", &["rdmap64s0 has 100 Gbit/s on PCIe3 x8, 7.9 GB/s at most", "2 more"]),
    (P5, "[[host.file]]\npath = '/var/lib/dpkg/status'\ntext = \"Package: bash\\nVersion: 5.2-1\\n\\n\
      Package: nvidia-fabricmanager-570\\nStatus: install ok installed\\nVersion: 570.86.15-1\\n\"",
     "problem", "fabric-manager-version", &["Fabric Manager is 570.86.15, the driver 570.00.00"]),
    (P5, "[[host.file]]\npath = '/var/log/fabricmanager.log'\ntext = \"fabric manager NVIDIA GPU driver \
      interface version 530.30.02 don't match with driver version 570.00.00.\\n\"",
     "problem", "fabric-manager-version", &["530.30.02"]),
    (P4D, "[[host.file]]\npath = '/proc/self/limits'\ntext = 'Limit  Sof'",
     "cannot-tell", "locked-memory", &["/proc/self/limits does not tell"]),
    (P4D, "[[host.file]]\npath = '/proc/self/mountinfo'\ntext = '26 24 0:23 / /dev/sh'",
     "cannot-tell", "shared-memory", &["/proc/self/mountinfo"]),
];

#[test]
fn each_defect_is_named_and_nothing_else() {
    for (machine, defect, verdict, check, words) in DEFECTS {
        let answer = Answer::of(&format!("{machine}\n{defect}"), "--json", &[]);
        answer.is_only(verdict, check, words, defect);
        let fine = answer.findings(&["ok"]);
        // A library that works may be there several times.
        let contradicted = fine.iter().find(|(name, _)| name == check && check != &"nccl");
        assert!(contradicted.is_none(), "{defect}: {contradicted:?}");
    }
}

#[test]
fn what_nobody_could_read_is_neither_fine_nor_a_defect() {
    let silent =
        |call: &str| format!("{P5}\n[[fault.call]]\nname = '{call}'\ncode = 999\nalways = true");
    // Without NVML nobody tells how many NVLinks are up, and whether clocks are held down.
    let answer = Answer::of(&silent("nvmlInit"), "--json", &[]);
    assert!(answer.findings(&["problem"]).is_empty(), "{}", answer.stdout);
    let fine = answer.findings(&["ok"]);
    assert!(fine.iter().all(|(check, _)| check != "gpu-condition" && check != "mig"), "{fine:#?}");
    let parts = fine.iter().find(|(check, _)| check == "instance").unwrap();
    assert!(!parts.1.contains("NVLinks") && parts.1.contains("GPUs"), "{parts:?}");
    let answer = Answer::of(&silent("nvmlDeviceGetFieldValues"), "--json", &[]);
    let told = answer.findings(&["ok"]).into_iter().filter(|(check, _)| check == "gpu-condition");
    let told: Vec<String> = told.map(|(_, said)| said).collect();
    assert!(told.len() == 1 && told[0].contains("clock"), "{told:#?}");
    // Drivers of EFA that do not ask the device write 100 Gb/s of each port.
    let rate = |nic: u32| format!("[[nic]]\nindices = [{nic}]\nrate_gbps = 100\n");
    let rates: String = (0..8).map(rate).collect();
    let answer = Answer::of(&format!("from = 'p6-b200.48xlarge'\n{rates}"), "--json", &[]);
    assert!(answer.findings(&["problem", "note"]).is_empty(), "{}", answer.stdout);
}

#[test]
fn one_gpu_that_answers_an_error_does_not_hide_what_else_is_wrong() {
    let machine = format!(
        "{P5}\n[[fault.call]]\nname = 'cuDeviceGetAttribute'\ncode = 999\nalways = true\n\
         [host]\nshm_mib = 64"
    );
    let answer = Answer::of(&machine, "--json --ranks 2", &[]);
    let mut problems: Vec<String> =
        answer.findings(&["problem"]).into_iter().map(|(check, _)| check).collect();
    problems.sort();
    assert_eq!((answer.code, problems), (1, vec!["driver".into(), "shared-memory".into()]));
}

#[test]
fn variables_that_switch_paths_off_or_do_nothing_are_named() {
    for (machine, (name, value), verdict, check, words) in [
        ("p5.48xlarge", ("NCCL_P2P_LEVEL", "LOC"), "problem", "paths-switched-off", "SHM"),
        ("p5.48xlarge", ("NCCL_P2P_DISABLE", "1"), "problem", "paths-switched-off", "SHM"),
        ("p5.48xlarge", ("NCCL_P2P_DISABLE", "true"), "problem", "nccl-variables", "0"),
        ("p5.48xlarge", ("NCCL_NVLS_ENABLE", "0"), "note", "paths-switched-off", "30 %"),
        ("g5.48xlarge", ("NCCL_SHM_DISABLE", "1"), "problem", "paths-switched-off", "host memory"),
        ("p5.48xlarge", ("FI_PROVIDER", "tcp"), "problem", "paths-switched-off", "EFA"),
        ("p5.48xlarge", ("FI_PROVIDER", "^efa"), "problem", "paths-switched-off", "EFA"),
        ("g5.48xlarge", ("FI_EFA_USE_DEVICE_RDMA", "1"), "problem", "paths-switched-off", "aborts"),
        ("p5.48xlarge", ("FI_EFA_USE_DEVICE_RDMA", "0"), "problem", "paths-switched-off", "RDMA"),
        (
            "p5.48xlarge",
            ("FI_EFA_USE_UNSOLICITED_WRITE_RECV", "0"),
            "problem",
            "paths-switched-off",
            "receives",
        ),
        ("p5.48xlarge", ("NCCL_NET", "Socket"), "problem", "paths-switched-off", "TCP"),
        ("p5.48xlarge", ("NCCL_P2P_DIRECT_READ", "1"), "note", "nccl-variables", "no NCCL"),
        ("p5.48xlarge", ("CUDA_LAUNCH_BLOCKING", "1"), "problem", "cuda-variables", "launched"),
        ("p5.48xlarge", ("CUDA_DEVICE_MAX_CONNECTIONS", "1"), "problem", "cuda-variables", "queue"),
        ("p5.48xlarge", ("CUDA_INJECTION64_PATH", "/x.so"), "problem", "cuda-variables", "refuses"),
        ("p5.48xlarge", ("NVTX_INJECTION64_PATH", "/x.so"), "problem", "cuda-variables", "refuses"),
        ("p5.48xlarge", ("CUDA_VISIBLE_DEVICES", "0,1,2"), "note", "visible-gpus", "3 of 8"),
    ] {
        let answer = Answer::on(machine, "--json", &[(name, value)]);
        answer.is_only(verdict, check, &[words, name], &format!("{name}={value} on {machine}"));
    }
    // A rank with a GPU of its own does not see what the others reach.
    let one = ("CUDA_VISIBLE_DEVICES", "0");
    for (machine, name, is_bad) in [
        ("p5.48xlarge", "NCCL_P2P_DISABLE", true),
        ("p5.48xlarge", "NCCL_SHM_DISABLE", false),
        ("g5.48xlarge", "NCCL_P2P_DISABLE", false),
        ("g5.48xlarge", "NCCL_SHM_DISABLE", true),
    ] {
        let answer = Answer::on(machine, "--json", &[one, (name, "1")]);
        let problems = answer.findings(&["problem"]);
        assert_eq!(problems.len(), usize::from(is_bad), "{name} on {machine}: {problems:#?}");
    }
    // What does no harm on a machine without the path is not held against it.
    for (machine, name, value) in [
        ("g5.48xlarge", "NCCL_P2P_DISABLE", "1"),
        ("p5.48xlarge", "NCCL_SHM_DISABLE", "1"),
        ("p5.48xlarge", "FI_PROVIDER", "efa"),
        ("p5.48xlarge", "NCCL_P2P_LEVEL", "NVL"),
        ("p5.48xlarge", "NCCL_DEBUG", "INFO"),
    ] {
        let answer = Answer::on(machine, "--json", &[(name, value)]);
        let bad: Vec<(String, String)> = answer
            .findings(&["problem", "note"])
            .into_iter()
            .filter(|(check, _)| check != "peer-access")
            .collect();
        assert!(bad.is_empty(), "{name}={value} on {machine}: {bad:#?}");
    }
}

#[test]
fn ranks_that_cannot_reach_each_other_are_named() {
    let planted = |path: &str, what: &str| {
        format!("{P5}\n[[host.file]]\npath = '{path}'\n{what}\nprocess = 1")
    };
    for (machine, words) in [
        (
            planted("/proc/sys/kernel/hostname", "text = \"pod-b\\n\""),
            &["under 2 names", "NCCL takes them for different hosts", "pod-b"][..],
        ),
        (
            planted(
                "/proc/self/mountinfo",
                "text = \"26 24 0:99 / /dev/shm rw - tmpfs shm rw,size=8388608k\\n\"",
            ),
            &["2 different /dev/shm"][..],
        ),
        (planted("/proc/self/ns/net", "link = 'net:[4026539999]'"), &["namespaces"][..]),
    ] {
        let answer = Answer::of(&machine, "--json --ranks 2", &[]);
        answer.is_only("problem", "ranks-apart", words, &machine);
        let ranks = answer.json()["findings"][0]["ranks"].clone();
        assert_eq!(ranks, serde_json::json!([0, 1]), "{machine}");
    }
    // What a rank cannot read makes it no other host.
    let answer =
        Answer::of(&planted("/proc/self/mountinfo", "text = 'cut'"), "--json --ranks 2", &[]);
    answer.is_only("cannot-tell", "shared-memory", &["/proc/self/mountinfo"], "a cut file");
    let names = planted("/proc/sys/kernel/hostname", "text = \"pod-b\\n\"");
    let answer = Answer::of(&names, "--json --ranks 2", &[("NCCL_HOSTID", "one")]);
    assert!(answer.findings(&["problem"]).is_empty(), "{}", answer.stdout);
    let whole = Answer::on("p5.48xlarge", "--json --ranks 8", &[]);
    assert_eq!((whole.code, whole.findings(&["problem", "note"])), (0, vec![]));
}

#[test]
fn ranks_of_a_launcher_are_held_against_each_other() {
    for mpi in every_launcher() {
        let line = "doctor --json --simulate p5.48xlarge";
        let (output, said) = mpi.outcome(2, line);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let json: Value = serde_json::from_str(&text(&output.stdout)).expect(&said);
        assert_eq!(json["hosts"].as_array().unwrap().len(), 1, "{said}");
        let (output, said) = mpi.outcome(2, &format!("{line} --ranks 3"));
        assert_ne!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("leave out --ranks 3"), "{said}");
        let (output, said) = mpi.outcome(2, &format!("{line} --catalogue nowhere.toml"));
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("nowhere.toml"), "{said}");
    }
}

#[test]
fn ranks_that_share_a_gpu_and_versions_that_differ_are_named() {
    let narrow = [("CUDA_VISIBLE_DEVICES", "0,1")];
    let answer = Answer::on("p5.48xlarge", "--json --ranks 4", &narrow);
    let problems = answer.findings(&["problem"]);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert_eq!(problems[0].0, "ranks-on-gpus");
    assert!(problems[0].1.contains("ranks 0, 2 have GPU-"), "{problems:#?}");
    let machine = format!(
        "{P5}\n[[host.file]]\npath = '/opt/amazon/efa_installed_packages'\ntext = \"# EFA installer \
         version: 1.30.0\\nlibfabric1-aws_2.1.0amzn1.0_amd64 libnccl-ofi_1.16.0-1_amd64\\n\"\n\
         process = 1"
    );
    let answer = Answer::of(&machine, "--json --ranks 2", &[]);
    let notes = answer.findings(&["note"]);
    assert!(answer.code == 0 && !notes.is_empty(), "{}", answer.stdout);
    assert!(notes.iter().all(|(check, _)| check == "versions"), "{notes:#?}");
    assert!(notes.iter().any(|(_, text)| text.contains("1.30.0 on ranks 1")), "{notes:#?}");
}

#[test]
fn a_host_unlike_the_others_is_named_and_hosts_of_one_type_are_alike() {
    let second = |of: &str| format!("[[gpu]]\nordinals = [8, 9, 10, 11, 12, 13, 14, 15]\n{of}\n");
    let mpi = every_launcher().next().unwrap();
    for (defect, verdict, words) in [
        (String::new(), "", ""),
        (second("vbios = '96.00.1'"), "note", "VBIOS of GPUs: 96.00.1 ({}), 0.0 (the other 2)"),
        (second("ecc = false"), "problem", "ECC of GPUs: off ({}), on (the other 2)"),
        (second("numa_node = 0"), "problem", "NUMA nodes of GPUs: 0 0 0 0 0 0 0 0 ({}), "),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine.toml");
        fs::write(&file, format!("schema = 1\nfrom = 'p4d.24xlarge'\nhosts = 3\n{defect}"))
            .unwrap();
        let line = format!("doctor --json --simulate {}", file.display());
        let (output, said) = mpi.outcome(3, &line);
        let code = i32::from(verdict == "problem");
        let answer = Answer { code, stdout: text(&output.stdout), stderr: said };
        assert_eq!(output.status.code(), Some(code), "{}", answer.stderr);
        if verdict.is_empty() {
            assert!(answer.findings(&["problem", "note"]).is_empty(), "{}", answer.stdout);
            continue;
        }
        let host =
            answer.json()["hosts"][1].as_str().unwrap().split(',').next().unwrap().to_owned();
        answer.is_only(verdict, "hosts-alike", &[&words.replace("{}", &host)], &defect);
        assert_eq!(answer.json()["findings"][0]["ranks"], serde_json::json!([1]), "{defect}");
    }
}

#[test]
fn what_one_rank_alone_finds_names_the_rank() {
    let machine = format!(
        "{P5}\n[[host.file]]\npath = '/proc/self/limits'\nprocess = 1\ntext = \"Max locked memory  \
         65536  65536  bytes\\n\""
    );
    // The machine counts processes as they come: of two the second is rank 1.
    let answer = Answer::of(&machine, "--ranks 2", &[]);
    assert!(answer.stdout.contains("64.0 KiB of memory (rank 1)"), "{}", answer.stdout);
    assert_eq!(answer.code, 1);
}

#[test]
fn the_table_has_problems_first_and_counts_the_rest() {
    let machine = format!("{P5}\n[host]\nshm_mib = 64\ngovernor = 'powersave'");
    let answer = Answer::of(&machine, "", &[]);
    let place = |words: &str| {
        answer.stdout.find(words).unwrap_or_else(|| panic!("no {words}: {}", answer.stdout))
    };
    assert!(place("[SIMULATED]") < place("Problems"));
    assert!(place("Problems") < place("- shared-memory:") && place("What to do") < place("Notes"));
    assert!(place("- cpu-governor:") < place("1 problem, 1 note, 0 cannot tell,"));
    assert!(!answer.stdout.contains("\nOk\n") && answer.stderr.is_empty());
    let verbose = Answer::of(&machine, "--verbose", &[]);
    assert!(verbose.stdout.contains("\nOk\n"), "{}", verbose.stdout);
}

#[test]
fn this_machine_is_examined() {
    let result = run(g2g(), "doctor --format json");
    let json: Value = serde_json::from_str(&text(&result.stdout)).unwrap();
    assert_eq!(json["simulated"], false);
    let findings = json["findings"].as_array().unwrap();
    let problems = findings.iter().filter(|finding| finding["verdict"] == "problem").count();
    assert_eq!(result.status.code(), Some(i32::from(problems > 0)), "{json:#}");
    assert!(findings.iter().any(|finding| finding["check"] == "shared-memory"), "{json:#}");
}

#[test]
fn bad_arguments_are_refused() {
    for (line, words) in [
        ("--format yaml", "yaml"),
        ("--json --format json", "--format"),
        ("--ranks 0", "0"),
        ("--simulate p4d.48xlarge", "p4d.24xlarge"),
        ("--deadline soon", "soon"),
    ] {
        let result = run(g2g(), &format!("doctor {line}"));
        let said = text(&result.stderr);
        assert_eq!(result.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(words) && result.stdout.is_empty(), "{line}: {said}");
    }
}
