//! Finds what slows a path of this machine down, or blocks it, before anything is measured.
//!
//! Owns the checks, their verdicts and their words. A check is a pure function of what `machine`
//! has read. A check that cannot tell says why.

mod alike;
mod checks;
mod ranks;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use serde::{Deserialize, Serialize};

pub use ranks::Member;
use ranks::compare;

use crate::{
    machine::{
        Refusal,
        acs::Acs,
        host::Host,
        nics::{Nic, NicKind},
        software::Software,
        survey::Survey,
        system::Unread,
    },
    plan::{
        catalogue::{Catalogue, Instance},
        nccl_env::{Known, Setting},
    },
};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A path is slower than it should be, or blocked.
    Problem,
    /// Worth knowing.
    Note,
    /// The facts that decide cannot be read.
    CannotTell,
    /// Nothing is wrong.
    Ok,
}

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Finding {
    /// The result.
    pub verdict: Verdict,
    /// The check's name, for programs.
    pub check: String,
    /// What was seen, with its values.
    pub seen: String,
    /// What that means, for which path.
    pub means: Option<String>,
    /// What to do.
    pub remedy: Option<String>,
    /// The document that says so.
    pub source: Option<String>,
}

impl Finding {
    fn new(verdict: Verdict, seen: impl Into<String>) -> Self {
        let (check, seen) = (String::new(), seen.into());
        Self { verdict, check, seen, means: None, remedy: None, source: None }
    }

    fn problem(seen: impl Into<String>) -> Self {
        Self::new(Verdict::Problem, seen)
    }

    fn note(seen: impl Into<String>) -> Self {
        Self::new(Verdict::Note, seen)
    }

    /// The facts that decide cannot be read, for this `reason`.
    fn cannot_tell(reason: impl ToString) -> Self {
        Self::new(Verdict::CannotTell, reason.to_string())
    }

    fn ok(seen: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, seen)
    }

    fn with(self, Advice { means, remedy, source }: Advice) -> Self {
        let told = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self { means: told(means), remedy: told(remedy), source: told(source), ..self }
    }

    fn remedy(self, remedy: String) -> Self {
        Self { remedy: Some(remedy), ..self }
    }
}

/// What a finding means and what to do about it; an empty text is left out.
#[derive(Clone, Copy, Default)]
struct Advice {
    means: &'static str,
    remedy: &'static str,
    source: &'static str,
}

/// The facts of one host, as one process sees it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What the kernel reports.
    pub host: Host,
    /// Whether PCI Express bridges redirect requests between devices.
    pub acs: Acs,
    /// Why the driver cannot be used, if it cannot.
    pub refusal: Option<Refusal>,
    /// What the driver and NVML report.
    pub survey: Survey,
    /// Whether traffic between GPUs and CPUs is encrypted; `None`: NVML does not report it.
    pub confidential: Option<bool>,
    /// Whether the driver exports GPU memory as dma-bufs; `None`: it does not report it.
    pub dma_buf: Option<bool>,
    /// The libraries that are installed.
    pub software: Software,
    /// The variables that NCCL and the libraries below it see.
    pub settings: Vec<Setting>,
    /// The facts of instance types.
    pub catalogue: Cow<'static, Catalogue>,
    /// The NCCL that is loaded.
    pub nccl: Option<Known>,
    /// Variables of CUDA and of containers.
    pub variables: BTreeMap<String, String>,
}

impl Facts {
    /// What the catalogue knows of this type of instance.
    fn instance(&self) -> Option<&Instance> {
        self.catalogue.instance.get(self.host.product.as_deref().ok()?)
    }

    /// The number of GPUs of the system, including those that this process may not use.
    fn gpu_count(&self) -> usize {
        let of_driver = self.host.driver_gpus.as_ref().map_or(0, Vec::len);
        of_driver.max(self.survey.gpus.len() + self.survey.other_gpus.len())
    }

    /// The RDMA devices.
    fn rdma_devices(&self) -> impl Iterator<Item = &Nic> {
        let nics = self.survey.nics.iter().map(|surveyed| &surveyed.nic);
        nics.filter(|nic| nic.is_rdma())
    }

    fn has_rdma_devices(&self) -> bool {
        self.rdma_devices().next().is_some()
    }

    fn has_efa(&self) -> bool {
        self.rdma_devices().any(|device| device.kind == NicKind::Efa)
    }

    /// Whether there is EFA, with RDMA as far as the catalogue knows.
    fn has_efa_rdma(&self) -> bool {
        let lacks = |known: &Instance| known.efa_rdma_read == Some(false);
        self.has_efa() && !self.instance().is_some_and(lacks)
    }

    /// The value of a variable that NCCL or a library below it sees.
    fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}

/// The findings of all checks on a host, problems first.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, check) in checks::ALL {
        let named = |finding| Finding { check: (*name).to_owned(), ..finding };
        findings.extend(check.findings(facts).into_iter().map(named));
    }
    findings.sort();
    findings
}

/// A finding and the ranks that it applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Located {
    /// The finding.
    #[serde(flatten)]
    pub finding: Finding,
    /// The ranks; empty if it applies to all of them.
    pub ranks: Vec<u32>,
}

/// The answer of `g2g doctor`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether it is a simulated machine.
    pub simulated: bool,
    /// The hosts that were examined, a line each.
    pub hosts: Vec<String>,
    /// All findings, problems first.
    pub findings: Vec<Located>,
    /// What else could be checked, and how.
    pub beyond: Vec<String>,
}

impl Report {
    /// Merges the findings of all ranks. A finding of several ranks is listed once.
    pub fn of(members: &[Member]) -> Self {
        let mut found: BTreeMap<Finding, Vec<u32>> = BTreeMap::new();
        for member in members {
            for finding in &member.findings {
                found.entry(finding.clone()).or_default().push(member.rank);
            }
        }
        let located = found.into_iter().map(|(finding, mut ranks)| {
            if ranks.len() == members.len() {
                ranks.clear();
            }
            Located { finding, ranks }
        });
        let mut findings: Vec<Located> = compare(members).into_iter().chain(located).collect();
        findings.sort_by_key(|located| located.finding.verdict);
        let mut seen = BTreeSet::new();
        let hosts = members.iter().map(|member| &member.host_line);
        let hosts = hosts.filter(|line| seen.insert(*line)).cloned().collect();
        let beyond: BTreeSet<&String> = members.iter().flat_map(|member| &member.beyond).collect();
        let beyond = beyond.into_iter().cloned().collect();
        let simulated = members.iter().any(|member| member.simulated);
        Self { simulated, hosts, findings, beyond }
    }

    /// How many findings have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|located| located.finding.verdict == verdict).count()
    }
}

/// What else could be checked, and how: a sentence each.
fn beyond(facts: &Facts) -> Vec<String> {
    let acs = "as root, g2g could also see whether PCI Express access control (ACS) redirects \
               traffic between GPUs to the root complex";
    let log =
        "as root, g2g could also see errors of GPUs since the start (Xid) in the kernel's log";
    let is_denied = matches!(facts.host.xids, Err(Unread::Denied(_))) && facts.gpu_count() > 0;
    let sentences = [(facts.acs.denied > 0, acs), (is_denied, log)].into_iter();
    sentences.filter(|(is_it, _)| *is_it).map(|(_, said)| said.to_owned()).collect()
}

#[cfg(test)]
mod tests;
