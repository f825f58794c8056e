//! Where the numbers come from: the machine, the program and the settings that change results.
//!
//! Only what is listed here is recorded. In particular the environment is never dumped, since it
//! may hold secrets.

use std::{
    borrow::Cow,
    env, fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    machine::{self, Library, health::HostHealth},
    plan::{Effort, nccl_env::is_setting, topology::Host},
    transport::nccl_env::is_own,
    units::Bytes,
};

/// Variables that are recorded: those that steer the libraries g2g measures.
const VARIABLES: [&str; 4] = ["NCCL_", "FI_", "OFI_", "CUDA_"];

/// Recorded in place of a value, unless the variable is a known setting.
const UNTOLD: &str = "(value not recorded)";

/// What is recorded beside the rows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Provenance {
    /// The program's version.
    pub version: Cow<'static, str>,
    /// The revision that it was built from; `-dirty` with changes that are in none.
    pub git_revision: Cow<'static, str>,
    /// The architecture that it was built for.
    pub architecture: Cow<'static, str>,
    /// When the run began, in UTC.
    pub started: String,
    /// The command as it was given.
    pub command: Vec<String>,
    /// Seed of the data patterns.
    pub seed: u64,
    /// Processes.
    pub ranks: usize,
    /// How long each case is measured.
    pub effort: Effort,
    /// Whether a simulated machine was measured.
    pub simulated: bool,
    /// Which one: an instance type or a file, as it was given.
    pub simulated_machine: Option<String>,
    /// The foreign libraries that were used.
    pub libraries: Vec<Library>,
    /// The machine of rank 0.
    pub machine: Machine,
    /// All hosts with their ranks, as far as cases depend on them; that of rank 0 first.
    pub hosts: Vec<Host>,
    /// Variables with the beginnings `NCCL_`, `FI_`, `OFI_` and `CUDA_`, but for those by which g2g
    /// keeps NCCL's log: as they were set where they are known settings, others by their names
    /// alone.
    pub environment: Vec<(String, String)>,
}

/// What of the machine changes results. `null`: the machine does not say.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Machine {
    /// Its name in the network.
    pub hostname: Option<String>,
    /// EC2 instance type, or the product's name by its maker.
    pub product: Option<String>,
    /// The processor.
    pub cpu_model: Option<String>,
    /// The kernel.
    pub kernel: Option<String>,
    /// All memory.
    pub memory_bytes: Option<Bytes>,
    /// Room in `/dev/shm` when the run began.
    pub shared_memory_free_bytes: Option<Bytes>,
    /// Transparent huge pages for ordinary memory, as the kernel has them: the word in brackets.
    pub huge_pages: Option<String>,
    /// Transparent huge pages for shared memory.
    pub shared_huge_pages: Option<String>,
    /// How the kernel sets clocks of CPUs.
    pub cpu_governor: Option<String>,
}

impl Provenance {
    /// Of the run that begins now on this machine; `mpi` is the MPI library that joins the ranks, if
    /// one does: its file and what it calls itself.
    pub fn collect(
        seed: u64,
        effort: Effort,
        simulated_machine: Option<String>,
        mpi: Option<(PathBuf, String)>,
        hosts: &[Host],
    ) -> Self {
        let mpi = mpi.map(|(path, version)| Library {
            name: "MPI".to_owned(),
            path: path.display().to_string(),
            version: version.lines().next().unwrap_or_default().to_owned(),
        });
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            git_revision: env!("G2G_GIT_REVISION").into(),
            architecture: env::consts::ARCH.into(),
            started: now(),
            command: command(),
            seed,
            ranks: hosts.iter().map(|host| host.ranks.len()).sum(),
            effort,
            simulated: simulated_machine.is_some(),
            simulated_machine,
            libraries: machine::libraries().into_iter().chain(mpi).collect(),
            machine: Machine::collect(),
            hosts: hosts.to_vec(),
            environment: environment(),
        }
    }

    /// A name for a folder: `20261121T093000Z-p5.48xlarge`.
    pub fn folder_name(&self) -> String {
        let machine = self.machine.slug(self.simulated_machine.as_deref());
        format!("{}-{machine}", compact(&self.started))
    }

    #[cfg(test)]
    pub(crate) fn example() -> Self {
        use crate::plan::Rank;

        let effort = Effort::default();
        let topology = crate::plan::topology::tests::machine(&[&[0, 1]]);
        let ranks = vec![Rank(0), Rank(1)];
        let host = Host { name: "here".to_owned(), ranks, topology, ..Host::default() };
        Self::collect(1, effort, None, None, &[host])
    }
}

/// When a run was resumed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Resumption {
    /// When, in UTC.
    pub time: String,
    /// The command as it was given.
    pub command: Vec<String>,
    /// The rows before it.
    pub rows: usize,
    /// What had changed since the run began; the user has allowed it.
    pub changed: Vec<String>,
    /// The health of each host's GPUs until then, if it was recorded.
    pub health: Vec<HostHealth>,
}

/// Where a sweep comes from; each of its runs has a provenance of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SweepProvenance {
    /// The program's version.
    pub version: Cow<'static, str>,
    /// The revision that it was built from; `-dirty` with changes that are in none.
    pub git_revision: Cow<'static, str>,
    /// The architecture that it was built for.
    pub architecture: Cow<'static, str>,
    /// When the sweep began, in UTC.
    pub started: String,
    /// The command as it was given.
    pub command: Vec<String>,
    /// The machine that is simulated in every run.
    pub simulated_machine: Option<String>,
    /// The machine that the sweep is run from.
    pub machine: Machine,
    /// Variables, as in [`Provenance`].
    pub environment: Vec<(String, String)>,
}

impl SweepProvenance {
    /// Of the sweep that begins now.
    pub fn collect(simulated_machine: Option<String>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            git_revision: env!("G2G_GIT_REVISION").into(),
            architecture: env::consts::ARCH.into(),
            started: now(),
            command: command(),
            simulated_machine,
            machine: Machine::collect(),
            environment: environment(),
        }
    }

    /// A name for a folder: `20261121T093000Z-sweep-p5.48xlarge`.
    pub fn folder_name(&self) -> String {
        let machine = self.machine.slug(self.simulated_machine.as_deref());
        format!("{}-sweep-{machine}", compact(&self.started))
    }
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `20261121T093000Z`
fn compact(time: &str) -> String {
    time.chars().filter(|c| !matches!(c, '-' | ':')).collect()
}

fn command() -> Vec<String> {
    env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn environment() -> Vec<(String, String)> {
    let listed = |name: &str| VARIABLES.iter().any(|beginning| name.starts_with(beginning));
    let mut environment: Vec<(String, String)> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| listed(name) && !is_own(name))
        .map(|(name, value)| {
            let value = if is_setting(&name) { value } else { UNTOLD.to_owned() };
            (name, value)
        })
        .collect();
    environment.sort_unstable();
    environment
}

impl Machine {
    /// What it, or the machine that it simulates, is called, as a part of a file's name.
    fn slug(&self, simulated: Option<&str>) -> String {
        if let Some(simulated) = simulated {
            let stem = Path::new(simulated).file_name().unwrap_or_default().to_string_lossy();
            return format!("simulated-{}", slug(stem.trim_end_matches(".toml")));
        }
        let name = [&self.product, &self.cpu_model].into_iter().flatten().next();
        slug(name.map_or("unknown-machine", |name| name))
    }

    fn collect() -> Self {
        let huge = |file| bracketed(&line(&format!("/sys/kernel/mm/transparent_hugepage/{file}"))?);
        Self {
            hostname: line("/proc/sys/kernel/hostname"),
            product: line("/sys/class/dmi/id/product_name"),
            cpu_model: cpu_model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            kernel: line("/proc/sys/kernel/osrelease"),
            memory_bytes: machine::total_memory(),
            shared_memory_free_bytes: machine::free_shared_memory().ok(),
            huge_pages: huge("enabled"),
            shared_huge_pages: huge("shmem_enabled"),
            cpu_governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        }
    }
}

/// The first line of a file, if there is one with something in it.
fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// x86 names its processors; Arm gives numbers of implementer and part.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let field = |name: &str| {
        let value = |line: &str| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        };
        cpuinfo.lines().find_map(value)
    };
    let arm = || {
        let (implementer, part) = (field("CPU implementer")?, field("CPU part")?);
        Some(format!("arm implementer {implementer} part {part}"))
    };
    field("model name").or_else(arm)
}

fn bracketed(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Letters, digits and dots, with single dashes for all else.
fn slug(text: &str) -> String {
    let mut slug = String::new();
    for letter in text.to_lowercase().chars() {
        match letter {
            'a'..='z' | '0'..='9' | '.' => slug.push(letter),
            _ if slug.ends_with('-') || slug.is_empty() => {}
            _ => slug.push('-'),
        }
    }
    slug.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_named_for_time_and_machine() {
        let mut provenance = Provenance::example();
        provenance.started = "2026-11-21T09:30:00Z".to_owned();
        provenance.machine.product = Some("p5.48xlarge".to_owned());
        assert_eq!(provenance.folder_name(), "20261121T093000Z-p5.48xlarge");
        provenance.simulated_machine = Some("machines/Four GPUs.toml".to_owned());
        assert_eq!(provenance.folder_name(), "20261121T093000Z-simulated-four-gpus");
        provenance.simulated_machine = None;
        provenance.machine.product = None;
        provenance.machine.cpu_model = Some("Intel(R) Xeon(R) Processor".to_owned());
        assert_eq!(provenance.folder_name(), "20261121T093000Z-intel-r-xeon-r-processor");
    }

    #[test]
    fn processors_of_both_architectures_have_a_name() {
        let x86 = "processor\t: 0\nmodel name\t: AMD EPYC 7R13\nmodel\t\t: 1\n";
        assert_eq!(cpu_model(x86).unwrap(), "AMD EPYC 7R13");
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n";
        assert_eq!(cpu_model(arm).unwrap(), "arm implementer 0x41 part 0xd4f");
        assert_eq!(cpu_model(""), None);
    }

    #[test]
    fn the_kernels_choice_is_the_word_in_brackets() {
        assert_eq!(bracketed("always [madvise] never").unwrap(), "madvise");
        assert_eq!(bracketed("always"), None);
    }
}
