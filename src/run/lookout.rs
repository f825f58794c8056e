//! Counters before and after each case, and the health of the GPUs.

use std::{collections::BTreeSet, thread, time::Instant};

use super::ranks::Ranks;
use crate::{
    judge::counters::Seen,
    machine::{
        counters::{COUNTERS_CACHED, Reader, Reading},
        health::{GpuHealth, HostHealth, Xid},
    },
    measure::Witness,
    plan::{Case, Gpu, Rank, topology::Topology},
    world,
};

/// Reads the counters of this host. Only the first rank of a host does so.
pub(super) struct Lookout(Option<Post>);

/// What the first rank of a host reads.
struct Post {
    reader: Reader,
    /// The ranks on this host.
    ranks: Vec<Rank>,
    /// The health of the GPUs when the run began.
    start: Vec<GpuHealth>,
    /// Xids that the driver has reported so far.
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
            Some(post) => {
                let here = case.ends().filter(|end| post.ranks.contains(&end.rank));
                let own: BTreeSet<Gpu> = here.filter_map(|end| end.gpu()).collect();
                own.into_iter().collect()
            }
            None => Vec::new(),
        };
        let with_network = !case.engine.is_of_gpu();
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
    let gpus = reading.gpus.into_iter();
    gpus.map(|(gpu, of)| GpuHealth { gpu, health: of.ok().map(|of| of.health) }).collect()
}

impl Look<'_> {
    /// The readings, if this rank reads counters and data has moved, even if the case failed.
    pub(super) fn seen(mut self) -> Vec<Seen> {
        self.look_after();
        self.seen.into_iter().collect()
    }
}

impl Look<'_> {
    /// Lets pass for how long the kernel shows old counts of RDMA devices.
    fn rest(&self) {
        let is_late = |post: &&mut Post| post.reader.is_late && self.with_network;
        if self.post.as_ref().is_some_and(is_late) {
            thread::sleep(COUNTERS_CACHED);
        }
    }
}

impl Witness for Look<'_> {
    fn look_before(&mut self) {
        let Some(post) = &self.post else { return };
        self.rest();
        self.before = Some((post.reader.read(&self.gpus, self.with_network), Instant::now()));
    }

    fn look_after(&mut self) {
        let Some((before, began)) = self.before.take() else { return };
        let between = began.elapsed();
        self.rest();
        let Some(post) = self.post.as_mut() else { return };
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
