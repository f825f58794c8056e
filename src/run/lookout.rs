//! Counters before and after each case, and the health of the GPUs.

use std::{collections::BTreeSet, time::Instant};

use super::{ranks::Ranks, worker::CaseResult};
use crate::{
    judge::{
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

/// Reads the counters of this host, on its first rank; on other ranks it does nothing.
pub(super) struct Lookout(Option<Post>);

/// What the first rank of a host reads.
struct Post {
    reader: Reader,
    /// The ranks on this host.
    ranks: Vec<Rank>,
    /// The health of the GPUs when the run began.
    start: Vec<GpuHealth>,
    /// Errors that the driver has reported so far.
    xids: Vec<Xid>,
}

/// The readings before and after one case.
pub(super) struct Look<'a> {
    post: Option<&'a mut Post>,
    gpus: Vec<Gpu>,
    with_network: bool,
    before: Option<(Reading, Instant)>,
    seen: Option<Seen>,
}

impl Lookout {
    /// For this rank, on a host of this `topology`.
    pub(super) fn new(ranks: &mut Ranks, topology: &Topology) -> Self {
        let host = ranks.on_this_host();
        if !host.is_root() {
            return Self(None);
        }
        let ranks = host.members().to_vec();
        let reader = Reader::new(topology);
        let start = healths(&reader);
        Self(Some(Post { reader, ranks, start, xids: Vec::new() }))
    }

    /// The readings around `case`, of which this rank knows its part.
    pub(super) fn around(&mut self, case: &Case) -> Look<'_> {
        let post = self.0.as_mut();
        let gpus = match &post {
            // A rank knows only its own part of such a case.
            Some(post) if case.transport.is_across_hosts() => post.reader.gpus(),
            Some(_) => {
                let own: BTreeSet<Gpu> = case.ends().filter_map(|end| end.gpu()).collect();
                own.into_iter().collect()
            }
            None => Vec::new(),
        };
        let with_network = case.transport == TransportKind::Rdma || case.engine == Engine::Cpu;
        Look { post, gpus, with_network, before: None, seen: None }
    }

    /// The health of this host's GPUs over the whole run.
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
    /// What was read, if this rank reads counters and data has moved, even if the case failed.
    pub(super) fn seen(mut self) -> Vec<Seen> {
        self.look_after();
        self.seen.into_iter().collect()
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
            nvlinked: post.reader.nvlinked.clone(),
            xids,
        });
    }
}

/// What has been reported of GPUs, so that each is reported once.
#[derive(Default)]
pub(super) struct Notes(BTreeSet<(Option<Rank>, Gpu, &'static str)>);

impl Notes {
    /// Adds to the row what the counters say about its path and its GPUs.
    pub(super) fn row(&mut self, row: Row, case: &Case, result: &CaseResult) -> Row {
        let CaseResult { outcome, seen } = result;
        let row = match outcome {
            Some(Ok(Outcome::Measured(measured))) => {
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
            // An Xid may also be from the time since the previous case.
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
