//! Which flows a pattern has, between processes and between GPUs.

use super::{
    Endpoint, Flow, Gpu, Pattern, Place, Rank,
    topology::{NumaNode, Topology},
};

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

/// The sets of flows of a pattern between `gpus`, one for each case. The GPUs belong to the ranks
/// in turn.
pub(super) fn between_gpus(pattern: Pattern, gpus: &[Gpu], ranks: u32) -> Vec<Vec<Flow>> {
    let ends: Vec<Endpoint> = (0..)
        .zip(gpus)
        .map(|(index, &gpu)| Endpoint { rank: Rank(index % ranks), place: Place::Gpu(gpu) })
        .collect();
    between(pattern, &ends)
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
    use super::*;

    fn pairs(pattern: Pattern, gpus: u32, ranks: u32) -> Vec<Vec<(u32, u32)>> {
        let gpus: Vec<Gpu> = (0..gpus).map(Gpu).collect();
        let number = |end: Endpoint| end.gpu().unwrap().0;
        let pair = |flow: &Flow| (number(flow.source), number(flow.target));
        let cases = between_gpus(pattern, &gpus, ranks);
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
    fn gpus_are_dealt_to_the_ranks_in_turn() {
        let cases = between_gpus(Pattern::OneToAll, &[Gpu(4), Gpu(5), Gpu(7)], 2);
        let ranks: Vec<u32> = cases[0].iter().map(|flow| flow.target.rank.0).collect();
        assert_eq!((cases[0][0].source.rank, ranks), (Rank(0), vec![1, 0]));
    }
}
