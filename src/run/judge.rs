//! Compares each row with what is expected of it on the machines that take part.

use std::{borrow::Cow, fs, path::Path};

use super::{Failure, options::Options};
use crate::{
    judge::expected::{self, Chosen, Difference, Expected, Machine, Measured},
    machine::survey,
    plan::{
        Case, Flow, TransportKind,
        catalogue::Catalogue,
        topology::{Host, Topology},
    },
    record::{Row, Status},
    stderr::say,
};

use serde::{Deserialize, Serialize};

/// The catalogue with what the user's file adds.
pub(crate) fn catalogue(file: Option<&Path>) -> Result<Cow<'static, Catalogue>, Failure> {
    let Some(file) = file else { return Ok(Cow::Borrowed(Catalogue::built_in())) };
    let name = file.display();
    let text = fs::read_to_string(file)
        .map_err(|err| Failure::Start(format!("--catalogue {name}: {err}")))?;
    let whole = Catalogue::built_in().with(&text);
    whole.map(Cow::Owned).map_err(|bad| Failure::Start(format!("--catalogue {name}: {bad}")))
}

/// What the expected rates of a host follow from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Judged {
    machine: Machine,
    /// Where it differs from its type in the catalogue.
    differences: Vec<Difference>,
    /// Why nothing is known of it.
    untold: Option<String>,
}

/// What rank 0 needs to judge rows.
pub(super) struct Judge {
    pub(super) catalogue: Cow<'static, Catalogue>,
    /// In the order of the run's hosts.
    pub(super) hosts: Vec<Judged>,
}

/// Surveys this host. If it cannot, verdicts are unknown and the run continues.
pub(super) fn look(options: &Options, topology: &Topology) -> Result<Judged, String> {
    let catalogue = catalogue(options.catalogue.as_deref()).map_err(|err| err.to_string())?;
    let survey = match survey::survey(topology) {
        Ok(survey) => survey,
        Err(err) => return Ok(Judged { untold: Some(err.to_string()), ..Judged::default() }),
    };
    let machine = Machine::surveyed(&survey, &catalogue);
    let differences = expected::differences(&survey, &catalogue);
    Ok(Judged { machine, differences, untold: None })
}

impl Judged {
    /// Whether network interfaces reach memory of GPUs on such a machine, as far as is known.
    pub(super) fn reaches_gpus(&self) -> bool {
        self.machine.gpudirect_rdma != Some(false)
    }

    /// What the network interfaces of the host move together, one way, as far as is known.
    pub(super) fn network_gb_s(&self) -> Option<f64> {
        let known: Vec<f64> = self.machine.nics.iter().filter_map(|nic| nic.gb_s).collect();
        (!known.is_empty()).then(|| known.iter().sum())
    }
}

impl Judge {
    /// Adds to the row what is expected of it.
    pub(super) fn judged(&self, row: Row, case: &Case, hosts: &[Host]) -> Row {
        if row.status != Status::Ok {
            return row;
        }
        let chosen = Chosen {
            algorithm: row.algorithm.as_deref(),
            protocol: row.algorithm_protocol.as_deref(),
            transports: row.path.as_deref(),
            is_emulated: row.emulated,
        };
        let expected = self.expected(case, hosts, chosen);
        let judgement = expected::judge(measured(&row, case), expected);
        row.judged(judgement)
    }

    /// What `case` should reach between `hosts`, with what its library has `chosen`.
    pub(super) fn expected(
        &self,
        case: &Case,
        hosts: &[Host],
        chosen: Chosen<'_>,
    ) -> Result<Expected, String> {
        let machines = self.hosts.iter().map(|judged| &judged.machine);
        let sites: Vec<expected::Site<'_>> = machines
            .zip(hosts)
            .map(|(machine, host)| expected::Site { machine, ranks: &host.ranks })
            .collect();
        expected::expected(case, &sites, chosen, &self.catalogue)
    }

    /// Whether GPUs of `case` cannot reach each other's memory, so that its row is skipped.
    pub(super) fn skips(&self, case: &Case, hosts: &[Host]) -> bool {
        let of_rank = |rank| hosts.iter().position(|host| host.ranks.contains(&rank));
        case.transport == TransportKind::P2p
            && case.flows.iter().any(|Flow { source, target }| {
                let host = of_rank(source.rank).filter(|&host| of_rank(target.rank) == Some(host));
                let gpus = source.gpu().zip(target.gpu());
                host.zip(gpus).is_some_and(|(host, (source, target))| {
                    self.hosts[host].machine.keeps_apart(source.0, target.0)
                })
            })
    }

    /// Reports hosts that differ from what they should be.
    pub(super) fn conclude(&self, hosts: &[Host], is_quiet: bool) {
        if is_quiet {
            return;
        }
        for (judged, host) in self.hosts.iter().zip(hosts) {
            let place = if hosts.len() > 1 { format!("{}: ", host.name) } else { String::new() };
            if let Some(reason) = &judged.untold {
                say(&format!("note: {place}nothing is expected of this machine: {reason}"));
            }
            for difference in &judged.differences {
                say(&format!("note: {place}{}", difference.sentence()));
            }
        }
    }
}

/// The number that is judged: for collectives the bus bandwidth. `None`: the row has no number.
fn measured(row: &Row, case: &Case) -> Option<Measured> {
    let factor = match case.collective() {
        Some((collective, nccl, _)) => collective.busbw_factor(nccl.ranks)?,
        None => 1.0,
    };
    let gb_s = row.bandwidth_gb_s? * factor;
    Some(Measured {
        gb_s,
        interval: row
            .bandwidth_gb_s_low
            .zip(row.bandwidth_gb_s_high)
            .map(|(low, high)| (low * factor, high * factor)),
        size: row.size_bytes?,
        factor,
    })
}
