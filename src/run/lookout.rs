//! Counters before and after each case, and how the GPUs are doing meanwhile.

use std::{collections::BTreeSet, time::Instant};

use serde::{Deserialize, Serialize};

use super::ranks::Ranks;
use crate::{
    evidence::{
        counters::{self, Moved, Seen},
        health,
    },
    machine::{
        counters::{Reader, Reading},
        health::{GpuHealth, HostHealth, Xid},
    },
    measure::{Outcome, Witness},
    plan::{Case, Engine, Gpu, Rank, TransportKind, topology::Topology},
    record::Row,
    stderr::say,
    world,
};

/// What became of a case.
#[derive(Serialize, Deserialize)]
pub(super) struct Found {
    /// Its numbers, or why it went wrong.
    pub(super) outcome: Result<Outcome, String>,
    /// What was seen on each host meanwhile.
    pub(super) seen: Vec<Seen>,
}

/// The one on this host who looks: its first rank; for the others, nobody.
pub(super) struct Lookout(Option<Post>);

/// Where the looks are taken from.
struct Post {
    reader: Reader,
    /// The ranks on this host.
    ranks: Vec<Rank>,
    /// How the GPUs did when the run began.
    start: Vec<GpuHealth>,
    /// Errors that the driver has told of so far.
    xids: Vec<Xid>,
}

/// The looks around one case.
pub(super) struct Look<'a> {
    post: Option<&'a mut Post>,
    gpus: Vec<Gpu>,
    with_network: bool,
    before: Option<(Reading, Instant)>,
    seen: Option<Seen>,
}

impl Lookout {
    /// On this rank, which has this host's `topology`.
    pub(super) fn new(ranks: &mut Ranks, topology: &Topology) -> Self {
        let within = ranks.within();
        if !within.is_root() {
            return Self(None);
        }
        let ranks = within.members().to_vec();
        let reader = Reader::new(topology);
        let start = healths(&reader);
        Self(Some(Post { reader, ranks, start, xids: Vec::new() }))
    }

    /// The looks around `case`, which is this rank's part of it.
    pub(super) fn around(&mut self, case: &Case) -> Look<'_> {
        let post = self.0.as_mut();
        let is_between = matches!(case.transport, TransportKind::Nccl | TransportKind::Rdma);
        let gpus = match &post {
            // A rank knows its own part of such a case only.
            Some(post) if is_between => post.reader.gpus(),
            Some(_) => {
                let own: BTreeSet<Gpu> = case.ends().filter_map(|end| end.gpu()).collect();
                own.into_iter().collect()
            }
            None => Vec::new(),
        };
        let with_network = case.transport == TransportKind::Rdma || case.engine == Engine::Cpu;
        Look { post, gpus, with_network, before: None, seen: None }
    }

    /// How the GPUs of this host have done in the whole run.
    pub(super) fn health(&mut self) -> Option<HostHealth> {
        let post = self.0.as_mut()?;
        if post.start.is_empty() {
            return None;
        }
        let last = post.reader.xids();
        post.xids.extend(last.iter().flatten());
        let are_told = last.is_some() || !post.xids.is_empty();
        Some(HostHealth {
            host: world::host().name,
            start: post.start.clone(),
            end: healths(&post.reader),
            xids: are_told.then(|| post.xids.clone()),
        })
    }
}

fn healths(reader: &Reader) -> Vec<GpuHealth> {
    let reading = reader.read(&reader.gpus(), false);
    let of = |(gpu, of): (Gpu, Result<_, String>)| GpuHealth {
        gpu,
        health: of.ok().map(|of: crate::machine::counters::OfGpu| of.health),
    };
    reading.gpus.into_iter().map(of).collect()
}

impl Look<'_> {
    /// What was seen, if this rank looks and data has moved, whatever became of the case.
    pub(super) fn seen(mut self) -> Option<Seen> {
        self.look_after();
        self.seen
    }
}

impl Witness for Look<'_> {
    fn look_before(&mut self) {
        let Some(post) = &self.post else { return };
        self.before = Some((post.reader.read(&self.gpus, self.with_network), Instant::now()));
    }

    fn look_after(&mut self) {
        let Some((post, (before, began))) = self.post.as_mut().zip(self.before.take()) else {
            return;
        };
        let between = began.elapsed();
        let after = post.reader.read(&self.gpus, self.with_network);
        let xids = post.reader.xids().unwrap_or_default();
        post.xids.extend(&xids);
        self.seen = Some(Seen {
            ranks: post.ranks.clone(),
            before,
            after,
            between,
            nvlinked: post.reader.nvlinked(&self.gpus),
            xids,
        });
    }
}

/// What was said of GPUs, each once.
#[derive(Default)]
pub(super) struct Notes(BTreeSet<(Option<Rank>, Gpu, &'static str)>);

impl Notes {
    /// The row with what the counters say of its path and of its GPUs.
    pub(super) fn row(&mut self, row: Row, case: &Case, found: &Found) -> Row {
        let Found { outcome, seen } = found;
        let row = match outcome {
            Ok(Outcome::Measured(measured)) => {
                let bytes = measured.network.as_ref().map(|network| network.moved);
                let moved = Moved { operations: measured.operations, bytes };
                match counters::path(case, moved, seen) {
                    Some(path) => row.counted(path),
                    None => row.with_nvlink_bytes(counters::nvlink_bytes_per_byte(
                        case,
                        measured.operations,
                        seen,
                    )),
                }
            }
            _ => row,
        };
        let mut doubts = Vec::new();
        for host in seen {
            let of_host = case.ends().filter(|end| host.ranks.contains(&end.rank));
            let gpus: BTreeSet<Gpu> = of_host.filter_map(|end| end.gpu()).collect();
            let mut new = health::doubts(&host.before, &host.after, host.between, &host.xids);
            // An Xid tells of the time since the case before, too.
            new.retain(|doubt| gpus.contains(&doubt.gpu) || doubt.flag == "xid");
            for doubt in &new {
                self.say(row.case, seen.len(), host, doubt);
            }
            doubts.extend(new);
        }
        row.with_flags(&health::flags(&doubts))
    }

    fn say(&mut self, case: usize, hosts: usize, host: &Seen, doubt: &health::Doubt) {
        let first = host.ranks.first().copied();
        if !self.0.insert((first, doubt.gpu, doubt.flag)) {
            return;
        }
        let gpu = doubt.gpu.0;
        let place = match (hosts, first) {
            (2.., Some(rank)) => format!(" on the host of rank {}", rank.0),
            _ => String::new(),
        };
        say(&format!("note: GPU {gpu}{place}, case {case}: {} ({})", doubt.what, doubt.flag));
    }
}
