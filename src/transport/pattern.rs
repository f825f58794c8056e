//! What a buffer must hold: 64-bit words that depend on a seed and on their own place.
//!
//! Word `i` is output `i` of a counter that is mixed: the state begins with the seed and grows by
//! `STEP` from word to word, as in SplitMix64 (Steele, Lea and Flood, "Fast splittable
//! pseudorandom number generators", OOPSLA 2014), and `mixed` makes the word of it. No word
//! repeats another within 2^64, because the step is odd and mixing can be undone, so that a block
//! that is shifted, repeated, swapped or missing is found wherever it lies. Mixing is so short that
//! a GPU makes words faster than its memory takes them. The bytes of a word are in little-endian
//! order on every machine; a tail of less than 8 bytes is the beginning of its word.
//! `kernels/shared.cuh` has the same.

use serde::{Deserialize, Serialize};

const WORD: usize = 8;

/// By how much the state, and the key of the checksum, grow from word to word: 2^64 divided by the
/// golden ratio, as in SplitMix64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Data that is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The rank whose target is wrong.
    pub rank: u32,
    /// Bytes from the beginning of the target to the first wrong one.
    pub offset: u64,
    /// What that byte must be.
    pub expected: u8,
    /// What it is.
    pub found: u8,
    /// How many bytes of the target are wrong.
    pub count: u64,
}

/// Word number `index` of the pattern of `seed`.
pub fn word(seed: u64, index: u64) -> u64 {
    mixed(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP)))
}

/// Doug Lea's mixing function (`RandomSupport.mixLea64` of OpenJDK 17; Steele and Vigna, "LXM:
/// better splittable pseudorandom number generators (and almost as fast)", OOPSLA 2021). To a GPU,
/// whose registers have 32 bits, a shift by 32 costs nothing.
fn mixed(state: u64) -> u64 {
    const FACTOR: u64 = 0xDABA_0B6E_B093_22E3;
    let state = (state ^ (state >> 32)).wrapping_mul(FACTOR);
    let state = (state ^ (state >> 32)).wrapping_mul(FACTOR);
    state ^ (state >> 32)
}

/// The seed of part `part` of something that has the seed `seed`: of a flow, of a batch.
pub fn part_seed(seed: u64, part: u64) -> u64 {
    word(seed ^ 0x6732_6720_7061_7274, part)
}

/// The seed whose pattern is that of `seed` from `offset` on, which is a multiple of 8 bytes.
pub fn advanced(seed: u64, offset: u64) -> u64 {
    seed.wrapping_add((offset / WORD as u64).wrapping_mul(STEP))
}

/// The byte at `offset` of the pattern of `seed`.
pub fn byte(seed: u64, offset: u64) -> u8 {
    let place = usize::try_from(offset % WORD as u64).unwrap_or(0);
    word(seed, offset / WORD as u64).to_le_bytes()[place]
}

/// What a buffer that holds the pattern of `seed` adds up to: the sum of all words, each xor its
/// key, which is its index times `STEP`. Of a last word that is not whole, only its bytes count,
/// each xor its own of the key. Wraps.
///
/// One wrong word always changes the sum, because xor with a key can be undone. Two words that have
/// changed places leave it as it is only if they agree in every bit, but for the highest, in which
/// their keys differ: x xor k is x + k - 2 (x and k), so the sum changes by twice a sum of distinct
/// powers of two, each added or subtracted, one for each bit in which both the words and the keys
/// differ. For random words and keys that is 0 modulo 2^64 with a probability of (3/4)^63, one in
/// 70 million, and of far less for blocks of several words.
pub fn checksum(seed: u64, bytes: u64) -> u64 {
    let term = |index: u64| word(seed, index) ^ index.wrapping_mul(STEP);
    let whole = bytes / WORD as u64;
    let sum = (0..whole).map(term).fold(0, u64::wrapping_add);
    match bytes % WORD as u64 {
        0 => sum,
        tail => sum.wrapping_add(term(whole) & ((1 << (8 * tail)) - 1)),
    }
}

/// Writes the pattern of `seed`.
pub fn fill(target: &mut [u8], seed: u64) {
    store(target, |index| word(seed, index));
}

/// Writes what differs from the pattern of `seed` in every byte, so that a byte that is never
/// overwritten is found.
pub fn poison(target: &mut [u8], seed: u64) {
    store(target, |index| !word(seed, index));
}

fn store(target: &mut [u8], value: impl Fn(u64) -> u64) {
    let (words, tail) = target.as_chunks_mut::<WORD>();
    let (whole, length) = (words.len() as u64, tail.len());
    for (index, word) in (0..whole).zip(words) {
        *word = value(index).to_le_bytes();
    }
    tail.copy_from_slice(&value(whole).to_le_bytes()[..length]);
}

/// Compares every byte with the pattern of `seed`; the answer names `rank` as the owner.
pub fn compare(found: &[u8], seed: u64, rank: u32) -> Option<Mismatch> {
    let (words, tail) = found.as_chunks::<WORD>();
    let mut first: Option<Mismatch> = None;
    let whole = words.len() as u64;
    for (index, bytes) in (0..whole).zip(words) {
        let expected = word(seed, index).to_le_bytes();
        if *bytes != expected {
            note(&mut first, rank, index, &expected, bytes);
        }
    }
    note(&mut first, rank, whole, &word(seed, whole).to_le_bytes(), tail);
    first
}

/// Compares a word that stands for a whole buffer, byte by byte.
pub fn compare_words(found: u64, expected: u64, rank: u32) -> Option<Mismatch> {
    let mut first = None;
    note(&mut first, rank, 0, &expected.to_le_bytes(), &found.to_le_bytes());
    first
}

/// Counts the wrong bytes of word `index`, and keeps the very first.
fn note(first: &mut Option<Mismatch>, rank: u32, index: u64, expected: &[u8; WORD], found: &[u8]) {
    for (place, (&expected, &found)) in (0..).zip(expected.iter().zip(found)) {
        if expected != found {
            let offset = index * WORD as u64 + place;
            let here = Mismatch { rank, offset, expected, found, count: 0 };
            first.get_or_insert(here).count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 20_261_121;

    fn filled(length: usize) -> Vec<u8> {
        let mut buffer = vec![0; length];
        fill(&mut buffer, SEED);
        buffer
    }

    #[test]
    fn a_pattern_goes_on_from_any_word() {
        let whole = filled(200);
        let mut rest = vec![0; 200 - 72];
        fill(&mut rest, advanced(SEED, 72));
        assert_eq!(rest, whole[72..]);
    }

    #[test]
    fn words_are_those_of_the_published_functions() {
        // Computed with whole numbers of any size, of which 64 bits are kept.
        let known = [
            (0, 5_397_241_335_645_105_076),
            (1, 10_036_195_605_256_929_896),
            (1_000_000_000_000_000, 11_706_181_731_821_085_254),
        ];
        for (index, expected) in known {
            assert_eq!(word(1_234_567, index), expected);
        }
    }

    #[test]
    fn no_word_repeats_another_because_its_state_follows_from_it() {
        // Times Lea's factor it is 1.
        let inverse = 0xA6F8_E269_27E1_32CB_u64;
        let undone = |word: u64| {
            let state = (word ^ (word >> 32)).wrapping_mul(inverse);
            let state = (state ^ (state >> 32)).wrapping_mul(inverse);
            state ^ (state >> 32)
        };
        for index in (0..1000_u64).chain((0..64).map(|bit| 1 << bit)) {
            let state = SEED.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP));
            assert_eq!(undone(word(SEED, index)), state);
        }
    }

    #[test]
    fn every_bit_of_seed_and_index_flips_every_bit_of_a_word_half_of_the_time() {
        // The mean of so many flips has a standard deviation of 0.0078: beyond 6.4 of these lies
        // one in 10^10.
        const SAMPLES: u64 = 4096;
        let most = |flipped: &dyn Fn(u64, u64) -> u64| {
            let mut most = 0.0_f64;
            for bit in 0..64 {
                let mut flips = [0_u32; 64];
                for index in 0..SAMPLES {
                    let change = word(SEED, index) ^ flipped(index, 1 << bit);
                    for (place, flips) in flips.iter_mut().enumerate() {
                        *flips += u32::from(change >> place & 1 != 0);
                    }
                }
                for flips in flips {
                    most = most.max((f64::from(flips) / SAMPLES as f64 - 0.5).abs());
                }
            }
            most
        };
        let (by_seed, by_index) = (
            most(&|index, bit| word(SEED ^ bit, index)),
            most(&|index, bit| word(SEED, index ^ bit)),
        );
        assert!(by_seed < 0.05 && by_index < 0.05, "{by_seed} {by_index}");
    }

    #[test]
    fn data_at_a_wrong_place_is_wrong_in_all_words_and_in_almost_all_bytes() {
        let good = filled(1 << 20);
        for by in [1, 2, 3, 4, 7, 8, 9, 16, 24, 32, 64, 128, 512, 4096, 4104, 1 << 16, 1 << 19] {
            let moved = &good[by..];
            let wrong = compare(moved, SEED, 0).unwrap();
            // Random bytes agree in one of 256.
            let share = wrong.count as f64 / moved.len() as f64;
            assert!(share > 0.995, "{by}: {share}");
            let (found, expected) = (moved.as_chunks::<WORD>().0, good.as_chunks::<WORD>().0);
            assert!(found.iter().zip(expected).all(|(found, expected)| found != expected), "{by}");
        }
    }

    #[test]
    fn what_was_filled_compares_equal_at_every_length() {
        for length in 0..100 {
            assert_eq!(compare(&filled(length), SEED, 0), None);
        }
    }

    /// What a buffer adds up to, byte by byte.
    fn summed(buffer: &[u8]) -> u64 {
        let mut sum = 0_u64;
        for (place, &byte) in (0..).zip(buffer) {
            let (index, shift) = (place / 8, 8 * (place % 8));
            let key = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(index) >> shift & 0xFF;
            sum = sum.wrapping_add((u64::from(byte) ^ key) << shift);
        }
        sum
    }

    #[test]
    fn a_byte_and_the_checksum_are_those_of_the_buffer() {
        for length in [1, 7, 8, 9, 1003] {
            let buffer = filled(length);
            for (place, &byte) in (0..).zip(&buffer) {
                assert_eq!(super::byte(SEED, place), byte);
            }
            assert_eq!(checksum(SEED, length as u64), summed(&buffer), "{length}");
        }
    }

    #[test]
    fn a_checksum_finds_every_wrong_bit_and_every_two_words_that_have_changed_places() {
        let good = filled(1003);
        let sum = summed(&good);
        for bit in 0..8 * good.len() {
            let mut wrong = good.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(summed(&wrong), sum, "{bit}");
        }
        for first in 0..good.len() / 8 {
            for second in 0..first {
                let mut wrong = good.clone();
                wrong.as_chunks_mut::<WORD>().0.swap(first, second);
                assert_ne!(summed(&wrong), sum, "{first} {second}");
            }
        }
    }

    #[test]
    fn a_checksum_finds_data_that_is_shifted_repeated_or_missing() {
        let block = 64 << 10;
        let good = filled(2 * block + 16);
        let sum = summed(&good[..2 * block]);
        for by in 1..=16 {
            assert_ne!(summed(&good[by..by + 2 * block]), sum, "{by}");
        }
        let changed = |change: &dyn Fn(&mut [u8])| {
            let mut wrong = good[..2 * block].to_vec();
            change(&mut wrong);
            summed(&wrong)
        };
        assert_ne!(changed(&|data| data.copy_within(..block, block)), sum, "repeated");
        assert_ne!(changed(&|data| data.rotate_left(block)), sum, "swapped");
        assert_ne!(changed(&|data| data[block..].fill(0)), sum, "missing");
    }

    #[test]
    fn poison_differs_in_every_byte() {
        for length in [1, 7, 8, 9, 4099] {
            let mut buffer = vec![0; length];
            poison(&mut buffer, SEED);
            let mismatch = compare(&buffer, SEED, 3).unwrap();
            assert_eq!((mismatch.offset, mismatch.count), (0, length as u64));
            assert_eq!((mismatch.rank, mismatch.found), (3, !mismatch.expected));
        }
    }

    #[test]
    fn any_single_byte_is_found_where_it_lies() {
        let good = filled(1003);
        for place in 0..good.len() {
            let mut buffer = good.clone();
            buffer[place] ^= 0x10;
            let expected = Mismatch {
                rank: 1,
                offset: place as u64,
                expected: good[place],
                found: buffer[place],
                count: 1,
            };
            assert_eq!(compare(&buffer, SEED, 1), Some(expected));
        }
    }

    #[test]
    fn shifted_swapped_and_foreign_blocks_are_found() {
        let block = 2 << 20;
        let good = filled(3 * block);
        let mut shifted = good.clone();
        shifted.copy_within(0..block, block);
        assert_eq!(compare(&shifted, SEED, 0).unwrap().offset, block as u64);
        let mut swapped = good.clone();
        swapped[..2 * block].rotate_left(block);
        assert_eq!(compare(&swapped, SEED, 0).unwrap().offset, 0);
        assert_eq!(compare(&good, part_seed(SEED, 1), 0).unwrap().offset, 0);
    }

    #[test]
    fn parts_have_seeds_of_their_own() {
        let mut seeds: Vec<u64> = (0..1000).map(|part| part_seed(SEED, part)).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 1000);
    }
}
