//! A step of a run: cases that are measured at the same time, and what each rank must know of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    plan::{Case, Effort, Rank, TransportKind},
    record::Row,
};

/// Cases that run at the same time. Each case is a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// A transport that cannot be measured, on host number `host` or on none: a row that says why.
    Absent { transport: TransportKind, reason: String, host: Option<usize> },
    /// A case on each host; `None`: the host has no more. Other ranks than 0 know their own host's.
    OnEachHost(Vec<Option<Case>>),
    /// A case that all ranks of all hosts measure together. Other ranks than 0 know their own part.
    AcrossHosts(Box<Case>),
    /// Cases that are measured at the same time, each by ranks of its own, in the order of their
    /// roots. The other ranks wait. Other ranks than 0 know their own part.
    Apart(Vec<Part>),
}

/// A case that some ranks measure, wherever they are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) case: Case,
    /// In the order of their numbers; the first is their root.
    pub(super) ranks: Vec<Rank>,
}

/// What a rank must know of the run: its part of the steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) steps: Vec<Step>,
    /// The number of the first step, from which the seed of its data derives.
    pub(super) first: u64,
    pub(super) effort: Effort,
    pub(super) seed: u64,
}

impl Part {
    /// What each of its ranks must know of it: of RDMA its own flows, but for the root.
    pub(super) fn of_ranks(&self) -> Vec<(Rank, Self)> {
        let mut parts = match self.case.fabric {
            Some(_) => self.case.parts(),
            None => BTreeMap::new(),
        };
        parts.retain(|rank, _| self.ranks.first() != Some(rank));
        let of_rank = |&rank: &Rank| {
            let case = parts.get(&rank).unwrap_or(&self.case).clone();
            (rank, Self { case, ranks: self.ranks.clone() })
        };
        self.ranks.iter().map(of_rank).collect()
    }
}

impl Step {
    /// The number of its rows.
    pub(super) fn rows(&self) -> usize {
        self.cases().count().max(1)
    }

    /// Its rows, with the columns that are known from the plan.
    pub(super) fn planned(&self) -> Vec<Row> {
        match self {
            Self::Absent { transport, reason, .. } => vec![Row::absent(0, *transport, reason)],
            Self::OnEachHost(_) | Self::AcrossHosts(_) | Self::Apart(_) => {
                self.cases().map(|case| Row::planned(0, case)).collect()
            }
        }
    }

    /// Its cases, in the order of their rows.
    pub(super) fn cases(&self) -> impl Iterator<Item = &Case> {
        let (of_hosts, of_parts, of_all) = match self {
            Self::Absent { .. } => (&[][..], &[][..], None),
            Self::OnEachHost(cases) => (&cases[..], &[][..], None),
            Self::Apart(parts) => (&[][..], &parts[..], None),
            Self::AcrossHosts(case) => (&[][..], &[][..], Some(&**case)),
        };
        of_hosts.iter().flatten().chain(of_parts.iter().map(|part| &part.case)).chain(of_all)
    }

    /// Its rows: the number of the host that has it by itself, and the case.
    pub(super) fn owned(&self) -> Vec<(Option<usize>, Option<&Case>)> {
        match self {
            Self::Absent { host, .. } => vec![(*host, None)],
            Self::OnEachHost(cases) => {
                let cases = cases.iter().enumerate();
                cases.filter_map(|(host, case)| Some((Some(host), Some(case.as_ref()?)))).collect()
            }
            Self::AcrossHosts(_) | Self::Apart(_) => {
                self.cases().map(|case| (None, Some(case))).collect()
            }
        }
    }

    /// Each of its rows as a step of its own, in their order.
    pub(super) fn one_by_one(&self) -> Vec<Self> {
        match self {
            Self::Absent { .. } | Self::AcrossHosts(_) => vec![self.clone()],
            Self::Apart(parts) => {
                parts.iter().map(|part| Self::Apart(vec![part.clone()])).collect()
            }
            Self::OnEachHost(cases) => {
                let only = |own: usize| {
                    let of_host =
                        |(host, case): (usize, &Option<Case>)| case.clone().filter(|_| host == own);
                    Self::OnEachHost(cases.iter().enumerate().map(of_host).collect())
                };
                (0..cases.len()).filter(|&host| cases[host].is_some()).map(only).collect()
            }
        }
    }

    /// Whether it is a collective of all hosts of a check, or of groups of them.
    pub(super) fn is_together(&self) -> bool {
        match self {
            Self::Apart(parts) => parts.iter().all(|part| part.case.collective().is_some()),
            Self::Absent { .. } | Self::OnEachHost(_) | Self::AcrossHosts(_) => false,
        }
    }

    /// How many places there are for cases that are measured at the same time.
    pub(super) fn places(&self) -> usize {
        match self {
            Self::Absent { .. } => 0,
            Self::OnEachHost(cases) => cases.len(),
            Self::Apart(parts) => parts.len(),
            Self::AcrossHosts(_) => 1,
        }
    }

    /// The case number `place` of those that are measured at the same time: of a host, or of a part.
    pub(super) fn case(&self, place: usize) -> Option<&Case> {
        match self {
            Self::Absent { .. } => None,
            Self::OnEachHost(cases) => cases.get(place)?.as_ref(),
            Self::Apart(parts) => parts.get(place).map(|part| &part.case),
            Self::AcrossHosts(case) => Some(case),
        }
    }

    /// The place of the case that `rank` measures, on one of `hosts`.
    pub(super) fn place(&self, rank: Rank, hosts: &[Vec<Rank>]) -> usize {
        let place = match self {
            Self::Absent { .. } | Self::AcrossHosts(_) => None,
            Self::OnEachHost(_) => hosts.iter().position(|host| host.contains(&rank)),
            Self::Apart(parts) => parts.iter().position(|part| part.ranks.contains(&rank)),
        };
        place.unwrap_or_default()
    }

    /// The ranks that measure the case number `place`, on one of `hosts`; none: all.
    pub(super) fn ranks<'a>(&'a self, place: usize, hosts: &'a [Vec<Rank>]) -> &'a [Rank] {
        let ranks = match self {
            Self::Absent { .. } | Self::AcrossHosts(_) => None,
            Self::OnEachHost(_) => hosts.get(place),
            Self::Apart(parts) => parts.get(place).map(|part| &part.ranks),
        };
        ranks.map_or(&[], Vec::as_slice)
    }

    /// The case of `rank`, which is on host number `host`.
    pub(super) fn case_of(&self, rank: Rank, host: usize) -> Option<&Case> {
        match self {
            Self::Apart(parts) => {
                parts.iter().find(|part| part.ranks.contains(&rank)).map(|part| &part.case)
            }
            Self::Absent { .. } | Self::OnEachHost(_) | Self::AcrossHosts(_) => self.case(host),
        }
    }
}

/// What is left of a run that has some rows already.
pub(super) struct Rest<'a> {
    /// The steps that are left; the first may have rows already.
    pub(super) steps: &'a [Step],
    /// The number of its first row.
    pub(super) row: usize,
    /// How many steps have been measured.
    pub(super) measured: u64,
}

impl<'a> Rest<'a> {
    /// What is left of `steps` after `finished` rows.
    pub(super) fn of(steps: &'a [Step], finished: usize) -> Self {
        let mut rest = Self { steps, row: 1, measured: 0 };
        while let [step, others @ ..] = rest.steps
            && rest.row + step.rows() <= finished + 1
        {
            rest.row += step.rows();
            rest.measured += u64::from(!matches!(step, Step::Absent { .. }));
            rest.steps = others;
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, Request, topology::tests::machine};

    #[test]
    fn what_is_left_begins_with_the_first_step_that_lacks_a_row() {
        let cases = plan::cases(&Request::of(&[TransportKind::Shm]), &machine(&[&[0, 1]]));
        let case = || cases.as_ref().unwrap().first().cloned();
        let steps = [
            Step::OnEachHost(vec![case(), case()]),
            Step::Absent { transport: TransportKind::P2p, reason: String::new(), host: None },
            Step::OnEachHost(vec![case(), None, case()]),
            Step::AcrossHosts(Box::new(case().unwrap())),
        ];
        // Rows 1 and 2 are of one step, 3 of none, 4 and 5 of the next, 6 of the last.
        let expected =
            [(1, 0, 4), (1, 0, 4), (3, 1, 3), (4, 1, 2), (4, 1, 2), (6, 2, 1), (7, 3, 0)];
        for (finished, expected) in (0..).zip(expected) {
            let Rest { row, measured, steps: left } = Rest::of(&steps, finished);
            assert_eq!((row, measured, left.len()), expected, "{finished} rows");
        }
    }
}
