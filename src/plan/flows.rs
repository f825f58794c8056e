//! Which flows a pattern has, between processes and between GPUs.

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::{
    Endpoint, Flow, Gpu, Pattern, Place, Rank,
    topology::{NumaNode, Topology},
};

/// Rounds in which each GPU has one partner. With 8 each part of a machine has 16 flows, enough to
/// tell a slow one, and of the 5112 ordered pairs of 72 GPUs 11.3 % are measured.
const ROUNDS: usize = 8;

/// The flows of a pattern between ranks that copy host memory: sources on the first node, targets
/// on the second.
pub(super) fn between_ranks(
    pattern: Pattern,
    ranks: u32,
    [source, target]: [NumaNode; 2],
    topology: &Topology,
) -> Vec<Flow> {
    let pairs = if pattern == Pattern::Pairs { ranks / 2 } else { 1 };
    // Sources first, then targets: with one node for both they must not share a CPU.
    let wanted: Vec<NumaNode> =
        (0..pairs).map(|_| source).chain((0..pairs).map(|_| target)).collect();
    let cpus = topology.assign(&wanted);
    let end = |rank: u32, numa_node, place: u32| {
        let cpu = cpus.as_ref().map(|cpus| cpus[place as usize]);
        Endpoint { rank: Rank(rank), place: Place::Host { numa_node, cpu } }
    };
    let forth = (0..pairs).map(|pair| Flow {
        source: end(2 * pair, source, pair),
        target: end(2 * pair + 1, target, pairs + pair),
    });
    let mut flows: Vec<Flow> = forth.collect();
    if pattern == Pattern::BothWays {
        flows.push(flows[0].reversed());
    }
    flows
}

/// Buffers of GPUs, which belong to the ranks in turn.
pub(super) fn of_gpus(gpus: &[Gpu], ranks: &[Rank]) -> Vec<Endpoint> {
    let ranks = ranks.iter().copied().cycle();
    let end = |(&gpu, rank): (&Gpu, Rank)| Endpoint { rank, place: Place::Gpu(gpu) };
    gpus.iter().zip(ranks).map(end).collect()
}

/// Some of the pairs of `ends`, drawn by `seed`: rounds of a tournament in which everyone meets
/// everyone else once (the circle method), each round all of `ends` in disjoint pairs.
pub(super) fn sampled(ends: &[Endpoint], seed: u64) -> Vec<[Endpoint; 2]> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut places: Vec<Option<Endpoint>> = ends.iter().copied().map(Some).collect();
    places.shuffle(&mut random);
    // With an odd number one has nobody to meet in each round.
    if places.len() % 2 == 1 {
        places.push(None);
    }
    let Some((fixed, circle)) = places.split_first() else { return Vec::new() };
    let count = circle.len();
    let mut rounds: Vec<usize> = (0..count).collect();
    rounds.shuffle(&mut random);
    let of_round = |round: usize| {
        let at = move |place: usize| circle[(round + place) % count];
        let across = (1..=count / 2).map(move |step| (at(step), at(count - step)));
        std::iter::once((*fixed, at(0))).chain(across)
    };
    let meetings = rounds.into_iter().take(ROUNDS).flat_map(of_round);
    meetings.filter_map(|(one, other)| Some([one?, other?])).collect()
}

/// The sets of flows of a pattern between `ends`, one for each case.
pub(super) fn between(pattern: Pattern, ends: &[Endpoint]) -> Vec<Vec<Flow>> {
    let count = ends.len();
    let ordered = || {
        let from = |&source: &Endpoint| ends.iter().map(move |&target| Flow { source, target });
        ends.iter().flat_map(from).filter(|flow| flow.source != flow.target)
    };
    match pattern {
        Pattern::OneWay => ordered().map(|flow| vec![flow]).collect(),
        Pattern::BothWays => {
            let to_later = |(place, &source): (usize, &Endpoint)| {
                ends[place + 1..].iter().map(move |&target| Flow { source, target })
            };
            let flows = ends.iter().enumerate().flat_map(to_later);
            flows.map(|flow| vec![flow, flow.reversed()]).collect()
        }
        Pattern::Pairs => {
            let pairs = ends.chunks_exact(2);
            vec![pairs.map(|pair| Flow { source: pair[0], target: pair[1] }).collect()]
        }
        Pattern::OneToAll => {
            ends.iter().map(|end| ordered().filter(|flow| flow.source == *end).collect()).collect()
        }
        Pattern::AllToOne => {
            ends.iter().map(|end| ordered().filter(|flow| flow.target == *end).collect()).collect()
        }
        Pattern::AllPairs => vec![ordered().collect()],
        Pattern::Bisection | Pattern::Neighbours => {
            let steps = if pattern == Pattern::Bisection { count / 2 } else { 1 };
            let to = |index: usize| ends[(index + steps) % count];
            let around = (0..count).map(|index| Flow { source: ends[index], target: to(index) });
            vec![around.collect()]
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pairs(pattern: Pattern, gpus: u32, ranks: u32) -> Vec<Vec<(u32, u32)>> {
        let gpus: Vec<Gpu> = (0..gpus).map(Gpu).collect();
        let number = |end: Endpoint| end.gpu().unwrap().0;
        let pair = |flow: &Flow| (number(flow.source), number(flow.target));
        let ranks: Vec<Rank> = (0..ranks).map(Rank).collect();
        let cases = between(pattern, &of_gpus(&gpus, &ranks));
        cases.iter().map(|flows| flows.iter().map(pair).collect()).collect()
    }

    #[test]
    fn every_pattern_has_its_flows() {
        assert_eq!(pairs(Pattern::OneWay, 3, 1).concat().len(), 6);
        assert_eq!(pairs(Pattern::OneWay, 8, 1).len(), 56);
        let both = [[(0, 1), (1, 0)], [(0, 2), (2, 0)], [(1, 2), (2, 1)]];
        assert_eq!(pairs(Pattern::BothWays, 3, 1), both);
        assert_eq!(pairs(Pattern::Pairs, 5, 1), [[(0, 1), (2, 3)]]);
        assert_eq!(pairs(Pattern::OneToAll, 3, 1)[1], [(1, 0), (1, 2)]);
        assert_eq!(pairs(Pattern::AllToOne, 3, 1)[1], [(0, 1), (2, 1)]);
        assert_eq!(pairs(Pattern::AllPairs, 4, 1)[0].len(), 12);
        assert_eq!(pairs(Pattern::Bisection, 4, 1), [[(0, 2), (1, 3), (2, 0), (3, 1)]]);
        assert_eq!(pairs(Pattern::Neighbours, 3, 1), [[(0, 1), (1, 2), (2, 0)]]);
    }

    #[test]
    fn a_sample_has_each_gpu_as_often_and_no_pair_twice() {
        for (gpus, pairs) in [(2, 1), (3, 3), (8, 28), (9, 32), (24, 96), (71, 280), (72, 288)] {
            let all: Vec<Gpu> = (0..gpus).map(Gpu).collect();
            let ends = of_gpus(&all, &[Rank(0)]);
            let sample = |seed| sampled(&ends, seed);
            let drawn = sample(7);
            let is_of = |gpu: u32, end: &Endpoint| end.gpu() == Some(Gpu(gpu));
            let of = |gpu: u32| drawn.iter().flatten().filter(|end| is_of(gpu, end)).count();
            let times: BTreeSet<usize> = (0..gpus).map(of).collect();
            let most = times.last().copied().unwrap();
            assert!(times.first().unwrap() + 1 >= most && most <= 8, "{gpus}: {times:?}");
            let number = |end: &Endpoint| end.gpu().unwrap().0;
            let sorted = |[one, two]: &[Endpoint; 2]| {
                let (one, two) = (number(one), number(two));
                (one.min(two), one.max(two))
            };
            let different: BTreeSet<(u32, u32)> = drawn.iter().map(sorted).collect();
            assert!(different.iter().all(|(one, two)| one < two));
            assert_eq!((drawn.len(), different.len()), (pairs, pairs), "{gpus} GPUs");
            assert_eq!(sample(7), drawn);
            assert!(gpus < 4 || sample(8) != drawn, "{gpus} GPUs");
        }
        let drawn = 2.0 * 288.0;
        assert!(drawn / (72.0 * 71.0) < 0.12);
    }

    #[test]
    fn gpus_are_dealt_to_the_ranks_in_turn() {
        let ends = of_gpus(&[Gpu(4), Gpu(5), Gpu(7)], &[Rank(0), Rank(1)]);
        let cases = between(Pattern::OneToAll, &ends);
        let ranks: Vec<u32> = cases[0].iter().map(|flow| flow.target.rank.0).collect();
        assert_eq!((cases[0][0].source.rank, ranks), (Rank(0), vec![1, 0]));
    }
}
