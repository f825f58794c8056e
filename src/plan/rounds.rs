//! Who meets whom, where all are to meet a few others.

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

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
