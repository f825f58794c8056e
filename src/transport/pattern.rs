//! What a buffer must hold: 64-bit words that depend on a seed and on their own place.
//!
//! Word `i` is SplitMix64's output number `i` for the seed (Steele, Lea and Flood, "Fast
//! splittable pseudorandom number generators", OOPSLA 2014). No word repeats another, so that a
//! block that is shifted, repeated, swapped or missing is found wherever it lies. The bytes of a
//! word are in little-endian order on every machine; a tail of less than 8 bytes is the beginning
//! of its word.

use serde::{Deserialize, Serialize};

const WORD: usize = 8;

/// By how much SplitMix64's state grows from word to word.
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
    let state = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
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

/// What a buffer that holds the pattern of `seed` adds up to: the sum of all words, each times
/// twice its index and one, so that words which change places change the sum. The last word of a
/// buffer that is no whole number of them has zeros behind its end. Wraps.
pub fn checksum(seed: u64, bytes: u64) -> u64 {
    let term = |index: u64, word: u64| word.wrapping_mul(index.wrapping_mul(2).wrapping_add(1));
    let whole = bytes / WORD as u64;
    let sum = (0..whole).map(|index| term(index, word(seed, index))).fold(0, u64::wrapping_add);
    match bytes % WORD as u64 {
        0 => sum,
        tail => sum.wrapping_add(term(whole, word(seed, whole) & ((1 << (8 * tail)) - 1))),
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
    fn words_are_splitmix64() {
        // First outputs for seed 1234567, as published with the algorithm.
        let known = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!([word(1_234_567, 0), word(1_234_567, 1)], known);
    }

    #[test]
    fn what_was_filled_compares_equal_at_every_length() {
        for length in 0..100 {
            assert_eq!(compare(&filled(length), SEED, 0), None);
        }
    }

    #[test]
    fn a_byte_and_the_checksum_are_those_of_the_buffer() {
        for length in [1, 7, 8, 9, 1003] {
            let buffer = filled(length);
            let mut sum = 0_u64;
            for (place, &byte) in (0..).zip(&buffer) {
                assert_eq!(super::byte(SEED, place), byte);
                let weight = (2 * (place / 8) + 1) << (8 * (place % 8));
                sum = sum.wrapping_add(u64::from(byte).wrapping_mul(weight));
            }
            assert_eq!(checksum(SEED, length as u64), sum, "{length}");
        }
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
