//! Who meets whom, where all are to meet a few others, and where the slow ones are looked for.

use std::ops::Range;

/// Rounds of disjoint pairs of `count` hosts: ⌈log₂ `count`⌉, but three for three hosts, so that of
/// more than two each has two partners at least. No pair meets twice. With an odd number one host
/// rests in each round. The rounds are the first ones of a tournament by the circle method (Lucas,
/// Récréations mathématiques, 1883).
pub(crate) fn rounds(count: usize) -> Vec<Vec<[usize; 2]>> {
    // One who rests has this partner, if there is no such host.
    let seats = count + count % 2;
    let number = if count == 3 { 3 } else { count.next_power_of_two().trailing_zeros() as usize };
    let round = |round: usize| {
        let turning = |place: usize| (round + place) % (seats - 1);
        let pairs = (1..seats / 2).map(|place| [turning(place), turning(seats - 1 - place)]);
        let all = pairs.chain([[turning(0), seats - 1]]);
        all.filter(|pair| pair.iter().all(|host| *host < count)).collect()
    };
    (0..number).map(round).collect()
}

/// The halves of groups, without those of one host, which are no groups: where a group is slow
/// together, one of its halves may be.
pub(crate) fn halves(groups: &[Range<usize>]) -> Vec<Range<usize>> {
    let halves = groups.iter().flat_map(|group| {
        let middle = group.start + group.len().div_ceil(2);
        [group.start..middle, middle..group.end]
    });
    halves.filter(|half| half.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, iter};

    use super::*;

    #[test]
    fn the_smallest_groups_with_slow_neighbours_are_found() {
        for count in 2..=1024 {
            // Where two neighbours are slow: up to three such places.
            let places: BTreeSet<usize> =
                [count / 3, count / 2, count - 2].into_iter().take(1 + count % 3).collect();
            let is_slow = |group: &Range<usize>| {
                places.iter().any(|place| group.contains(place) && group.contains(&(place + 1)))
            };
            let mut slow: Vec<Range<usize>> = iter::once(0..count).collect();
            let mut smallest: Vec<Range<usize>> = Vec::new();
            let mut levels = 0;
            while !slow.is_empty() {
                let halves = halves(&slow);
                assert!(halves.windows(2).all(|two| two[0].end <= two[1].start), "{halves:?}");
                let next: Vec<_> = halves.into_iter().filter(is_slow).collect();
                let is_whole = |group: &&Range<usize>| {
                    !next.iter().any(|half| group.start <= half.start && half.end <= group.end)
                };
                smallest.extend(slow.iter().filter(is_whole).cloned());
                slow = next;
                levels += 1;
            }
            assert!(1 << (levels - 1) <= count, "{count}: {levels}");
            // Every place is in one of them, or was cut in two by a larger one that holds it.
            assert!(smallest.iter().all(is_slow), "{count}: {smallest:?}");
            let alone = places.len() == 1;
            assert!(!alone || smallest.len() == 1, "{count}: {smallest:?}");
        }
    }

    #[test]
    fn everybody_meets_others_once_in_few_rounds() {
        assert_eq!(rounds(1), Vec::<Vec<[usize; 2]>>::new());
        assert_eq!(rounds(2), [[[0, 1]]]);
        for count in 2..=1024 {
            let rounds = rounds(count);
            let doublings = (0..).find(|rounds| 1 << rounds >= count).unwrap();
            let expected = if count == 3 { 3 } else { doublings };
            assert_eq!(rounds.len(), expected, "{count}");
            let mut met = BTreeSet::new();
            let mut partners = vec![0; count];
            for round in &rounds {
                let here: BTreeSet<usize> = round.iter().flatten().copied().collect();
                assert_eq!(here.len(), round.len() * 2, "{count}: {round:?}");
                assert_eq!(round.len(), count / 2, "{count}");
                assert!(here.iter().all(|host| *host < count), "{count}");
                for [a, b] in round {
                    assert!(met.insert((a.min(b), a.max(b))), "{count}: {a} {b}");
                    partners[*a] += 1;
                    partners[*b] += 1;
                }
            }
            assert!(partners.iter().all(|number| *number >= 2.min(count - 1)), "{count}");
        }
    }
}
