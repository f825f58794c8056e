//! How long the communication of a training step takes, by rows that were measured. Nothing is made
//! up: what lies outside of the sizes that were measured is said to be missing.

use std::collections::BTreeMap;

use indexmap::{IndexMap, IndexSet};
use serde::Serialize;

use crate::{
    plan::{
        Engine, Operation, Pattern, TransportKind,
        training::{Communication, Operations, Route, Way},
    },
    record::{MemoryKind, Row, Status},
    units::{Bytes, microseconds_at},
};

/// A part of a step, and how long it takes in a step.
#[derive(Clone, Debug, Serialize)]
pub struct Timed {
    /// The part.
    #[serde(flatten)]
    pub communication: Communication,
    /// What a GPU sends or copies for it in a step, in GB.
    pub moved_gb: f64,
    /// How long that takes, one operation after the other; `None` without runs.
    pub seconds: Option<f64>,
}

/// How long a step communicates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Total {
    /// One operation after the other.
    pub in_turn_s: f64,
    /// Collectives, copies to the host and copies from it go on at the same time, each one operation
    /// after the other.
    pub side_by_side_s: f64,
}

/// The parts, each with what it takes by `rows`; without rows nothing is known of that.
///
/// # Errors
///
/// The commands that measure what is missing.
pub fn timed(step: Vec<Communication>, rows: Option<&[Row]>) -> Result<Vec<Timed>, Vec<String>> {
    let mut missing: IndexMap<(Way, u32), Vec<Bytes>> = IndexMap::new();
    let mut all = Vec::new();
    for communication in step {
        let Route { way, ranks, .. } = communication.route;
        let Operations { size, times } = communication.operations;
        let one = rows.map(|rows| seconds(&points(rows, way, ranks), size));
        if one == Some(None) {
            missing.entry((way, ranks)).or_default().push(size);
        }
        let seconds = one.flatten().map(|one| one * times as f64);
        let moved_gb = communication.moved() / 1e9;
        all.push(Timed { communication, moved_gb, seconds });
    }
    match missing.is_empty() {
        true => Ok(all),
        false => {
            let commands = missing.iter().map(|((way, ranks), sizes)| command(*way, *ranks, sizes));
            Err(commands.collect::<IndexSet<String>>().into_iter().collect())
        }
    }
}

/// All of a step, if it is known what it takes.
pub fn total(all: &[Timed]) -> Option<Total> {
    let sum = |is_it: &dyn Fn(Way) -> bool| -> Option<f64> {
        let own = all.iter().filter(|timed| is_it(timed.communication.route.way));
        own.map(|timed| timed.seconds).sum()
    };
    let kinds = [
        sum(&|way| matches!(way, Way::Collective(_)))?,
        sum(&|way| way == Way::ToHost)?,
        sum(&|way| way == Way::FromHost)?,
    ];
    let side_by_side_s = kinds.into_iter().fold(0.0, f64::max);
    Some(Total { in_turn_s: kinds.into_iter().sum(), side_by_side_s })
}

/// What was measured of `way` among `ranks`: seconds of an operation by size. Of several rows of a
/// size the fastest collective counts, and the slowest copy, because a step waits for all GPUs.
fn points(rows: &[Row], way: Way, ranks: u32) -> BTreeMap<u64, f64> {
    let mut points = BTreeMap::new();
    for row in rows.iter().filter(|row| row.status == Status::Ok && is_of(row, way, ranks)) {
        let (Some(size), Some(gb_s)) = (row.size_bytes, row.bandwidth_gb_s) else { continue };
        let seconds = microseconds_at(size, gb_s) * 1e-6;
        let known = points.entry(size.get()).or_insert(seconds);
        *known = match way {
            Way::Collective(_) => known.min(seconds),
            Way::ToHost | Way::FromHost => known.max(seconds),
        };
    }
    points
}

fn is_of(row: &Row, way: Way, ranks: u32) -> bool {
    let copies = |from: MemoryKind, to: MemoryKind| {
        row.transport == TransportKind::Local
            && row.operation == Some(Operation::Copy)
            && (row.engine, row.pattern) == (Some(Engine::Ce), Some(Pattern::OneWay))
            && (row.source_memory, row.target_memory) == (Some(from), Some(to))
    };
    match way {
        Way::Collective(collective) => {
            row.transport == TransportKind::Nccl
                && row.operation == Some(Operation::Collective(collective))
                && row.communicator_ranks == Some(ranks)
        }
        Way::ToHost => copies(MemoryKind::Gpu, MemoryKind::Host),
        Way::FromHost => copies(MemoryKind::Host, MemoryKind::Gpu),
    }
}

/// An operation of `size` takes a start and a time for each byte, between two sizes that were
/// measured; `None` outside of these.
fn seconds(points: &BTreeMap<u64, f64>, size: Bytes) -> Option<f64> {
    let size = size.get();
    let (below, before) = points.range(..=size).next_back()?;
    let (above, after) = points.range(size..).next()?;
    if above == below {
        return Some(*before);
    }
    Some(before + (after - before) * (size - below) as f64 / (above - below) as f64)
}

/// What measures operations of these sizes.
fn command(way: Way, ranks: u32, sizes: &[Bytes]) -> String {
    let least = sizes.iter().min().map_or(1, |size| size.get().max(1));
    let most = sizes.iter().max().map_or(1, |size| size.get());
    let [least, most] = [1 << least.ilog2(), most.checked_next_power_of_two().unwrap_or(most)]
        .map(|size| Bytes::new(size).to_string().replace(' ', ""));
    match way {
        Way::Collective(collective) => {
            format!("g2g nccl --operation {collective} -g {ranks} --sizes {least}..{most}")
        }
        Way::ToHost | Way::FromHost => format!("g2g local --sizes {least}..{most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{
        Collective,
        training::{Group, Phase},
    };

    fn of(way: Way, size: u64, times: u64) -> Communication {
        let route = Route { way, group: Group::Data, ranks: 4 };
        let operations = Operations { size: Bytes::new(size), times };
        Communication { phase: Phase::Forward, what: "data", route, operations }
    }

    fn measured(size: u64, gb_s: f64) -> Row {
        Row {
            transport: TransportKind::Nccl,
            status: Status::Ok,
            operation: Some(Operation::Collective(Collective::AllGather)),
            communicator_ranks: Some(4),
            size_bytes: Some(Bytes::new(size)),
            bandwidth_gb_s: Some(gb_s),
            ..Row::default()
        }
    }

    fn copied(from: MemoryKind, to: MemoryKind, gb_s: f64) -> Row {
        Row {
            transport: TransportKind::Local,
            operation: Some(Operation::Copy),
            engine: Some(Engine::Ce),
            pattern: Some(Pattern::OneWay),
            source_memory: Some(from),
            target_memory: Some(to),
            ..measured(1_000_000, gb_s)
        }
    }

    #[test]
    fn between_two_sizes_the_time_is_between_and_outside_it_is_missing() {
        let gathers = Way::Collective(Collective::AllGather);
        // 10 us, and 110 us for ten times as much.
        let rows = [measured(1_000_000, 100.0), measured(11_000_000, 100.0)];
        let known = timed(vec![of(gathers, 6_000_000, 10)], Some(&rows)).unwrap();
        assert!((known[0].seconds.unwrap() - 600e-6).abs() < 1e-9, "{known:?}");
        // A rank sends three quarters of it.
        assert!((known[0].moved_gb - 0.045).abs() < 1e-9, "{known:?}");
        for size in [999_999, 11_000_001] {
            let missing = timed(vec![of(gathers, size, 1)], Some(&rows)).unwrap_err();
            assert_eq!(missing.len(), 1);
            assert!(missing[0].starts_with("g2g nccl --operation all_gather -g 4 --sizes "));
        }
        let missing = timed(vec![of(gathers, 3 << 20, 1)], Some(&rows[..1])).unwrap_err();
        assert_eq!(missing, ["g2g nccl --operation all_gather -g 4 --sizes 2MiB..4MiB"]);
        assert_eq!(timed(vec![of(gathers, 1, 1)], None).unwrap()[0].seconds, None);
        // Of other ranks nothing is known.
        let others = [Row { communicator_ranks: Some(8), ..measured(6_000_000, 1.0) }];
        assert!(timed(vec![of(gathers, 6_000_000, 1)], Some(&others)).is_err());
    }

    #[test]
    fn the_slowest_copy_counts_and_both_directions_go_on_beside_collectives() {
        let (gpu, host) = (MemoryKind::Gpu, MemoryKind::Host);
        let gathers = Way::Collective(Collective::AllGather);
        let rows = [
            copied(gpu, host, 20.0),
            copied(gpu, host, 10.0),
            copied(host, gpu, 25.0),
            measured(1_000_000, 100.0),
        ];
        let step = vec![
            of(Way::ToHost, 1_000_000, 1),
            of(Way::FromHost, 1_000_000, 1),
            of(gathers, 1_000_000, 8),
        ];
        let all = timed(step, Some(&rows)).unwrap();
        let Total { in_turn_s, side_by_side_s } = total(&all).unwrap();
        assert!((in_turn_s - 220e-6).abs() < 1e-9, "{in_turn_s}");
        assert!((side_by_side_s - 100e-6).abs() < 1e-9, "{side_by_side_s}");
        let missing = timed(vec![of(Way::ToHost, 2_000_000, 1)], Some(&rows)).unwrap_err();
        assert_eq!(missing, ["g2g local --sizes 1MiB..2MiB"]);
    }
}
