//! What a histogram in HdrHistogram's format holds, without the histogram: it would be nearly
//! empty, and there can be a million.
//!
//! The format is that of `HdrHistogram`'s wiki, "Internal format of V2": after a head runs of empty
//! places and the counts of others, as numbers of one to nine bytes.

use base64::prelude::{BASE64_STANDARD, Engine};
use miniz_oxide::inflate::{
    TINFLStatus,
    core::{DecompressorOxide, decompress, inflate_flags},
};

use crate::measure::Latency;

/// What a compressed histogram begins with, and one that is not.
const COMPRESSED: u32 = 0x1c84_9314;
const PLAIN: u32 = 0x1c84_9313;

/// Bytes of the head of a plain one.
const HEAD: usize = 40;

/// No histogram of ours is longer: 64 times as many places as [`HALF`], of nine bytes each.
const LENGTH_MAX: usize = HEAD + 9 * 64 * 1024;

/// From here on each place is of two values, from twice as much on of four: what three significant
/// digits need.
const HALF: u64 = 1024;

/// Reads one histogram after the other.
pub(super) struct Counts {
    inflate: Box<DecompressorOxide>,
    packed: Vec<u8>,
    plain: Vec<u8>,
    counts: Vec<(u64, u64)>,
}

impl Counts {
    pub(super) fn new() -> Self {
        let plain = vec![0; LENGTH_MAX];
        Self { inflate: Box::default(), packed: Vec::new(), plain, counts: Vec::new() }
    }

    /// The values of a histogram of [`Latency`], in nanoseconds, and how often each was counted;
    /// `None` if the text, in Base64, is none.
    pub(super) fn read(&mut self, text: &[u8]) -> Option<&[(u64, u64)]> {
        self.packed.clear();
        BASE64_STANDARD.decode_vec(text, &mut self.packed).ok()?;
        let (head, packed) = self.packed.split_at_checked(8)?;
        if head[..4] != COMPRESSED.to_be_bytes() {
            return None;
        }
        self.inflate.init();
        let flags = inflate_flags::TINFL_FLAG_PARSE_ZLIB_HEADER
            | inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (end, _, length) = decompress(&mut self.inflate, packed, &mut self.plain, 0, flags);
        if end != TINFLStatus::Done {
            return None;
        }
        let (head, mut places) = self.plain[..length].split_at_checked(HEAD)?;
        let word = |at: usize| head[at..at + 4].try_into().map(u32::from_be_bytes).ok();
        let wide = |at: usize| head[at..at + 8].try_into().map(u64::from_be_bytes).ok();
        let is_ours = word(0)? == PLAIN
            && usize::try_from(word(4)?) == Ok(places.len())
            && word(8)? == 0
            && word(12)? == u32::from(Latency::SIGNIFICANT_DIGITS)
            && wide(16)? == 1
            && wide(32)? == 1f64.to_bits();
        if !is_ours {
            return None;
        }
        self.counts.clear();
        let mut place = 0u64;
        while !places.is_empty() {
            let run = number(&mut places)?;
            if run < 0 {
                place = place.checked_add(run.unsigned_abs())?;
                continue;
            }
            if run > 0 {
                self.counts.push((value(place)?, run.unsigned_abs()));
            }
            place = place.checked_add(1)?;
        }
        Some(&self.counts)
    }
}

/// The next number: seven bits from each byte as long as more follow, eight of the ninth; the
/// lowest is the sign.
fn number(bytes: &mut &[u8]) -> Option<i64> {
    let mut read = 0u64;
    for shift in (0..=56).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = if shift < 56 { byte & 0x7f } else { *byte };
        read |= u64::from(bits) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some((read >> 1).cast_signed() ^ -(read & 1).cast_signed())
}

/// The smallest value that is counted at a place, if one is.
fn value(place: u64) -> Option<u64> {
    let Some(doubled) = (place / HALF).checked_sub(1) else { return Some(place) };
    let shift = u32::try_from(doubled).ok().filter(|shift| *shift < u64::BITS - 11)?;
    Some((place % HALF + HALF) << shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::{
        Histogram,
        serialization::{Serializer, V2DeflateSerializer, V2Serializer},
    };
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use std::time::Duration;

    fn text(histogram: &Histogram<u64>) -> String {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(histogram, &mut bytes).unwrap();
        BASE64_STANDARD.encode(bytes)
    }

    #[test]
    fn what_was_counted_is_read() {
        let mut random = StdRng::seed_from_u64(3);
        let mut counts = Counts::new();
        for samples in [0, 1, 2, 100, 100_000] {
            let time = |_| Duration::from_nanos(1 << random.random_range(0..44)) * 9 / 8;
            let times: Vec<Duration> = (0..samples).map(time).collect();
            let latency = Latency::of(&times);
            let mut read = Latency::default();
            read.count_all(counts.read(text(latency.histogram()).as_bytes()).unwrap());
            assert_eq!(read.count(), samples);
            assert_eq!(read.histogram(), latency.histogram());
            assert_eq!(read.max_ns(), latency.max_ns());
        }
        for ns in (0..5000).chain((12..62).flat_map(|bits| [(1 << bits) - 1, 1 << bits])) {
            let one = Latency::of(&[Duration::from_nanos(ns)]);
            let read = counts.read(text(one.histogram()).as_bytes()).unwrap().to_vec();
            assert!(matches!(read[..], [(_, 1)]), "{ns}: {read:?}");
            assert!(one.histogram().equivalent(read[0].0, one.max_ns()), "{ns}: {read:?}");
        }
    }

    /// The text of a histogram that has these numbers behind its head.
    fn made_up(numbers: &[i64]) -> String {
        let head = Latency::default();
        let mut plain = Vec::new();
        V2Serializer::new().serialize(head.histogram(), &mut plain).unwrap();
        plain.truncate(HEAD);
        for &number in numbers {
            let mut rest = (number << 1 ^ number >> 63).cast_unsigned();
            for _ in 0..8 {
                let bits = (rest & 0x7f) as u8;
                rest >>= 7;
                plain.push(if rest > 0 { bits | 0x80 } else { bits });
                if rest == 0 {
                    break;
                }
            }
            if rest > 0 {
                plain.push(u8::try_from(rest).unwrap());
            }
        }
        let length = u32::try_from(plain.len() - HEAD).unwrap();
        plain[4..8].copy_from_slice(&length.to_be_bytes());
        let packed = miniz_oxide::deflate::compress_to_vec_zlib(&plain, 6);
        let length = u32::try_from(packed.len()).unwrap();
        let head = [COMPRESSED.to_be_bytes(), length.to_be_bytes()].concat();
        BASE64_STANDARD.encode([head, packed].concat())
    }

    #[test]
    fn places_beyond_all_numbers_are_no_histogram() {
        let mut counts = Counts::new();
        let mut read =
            |numbers: &[i64]| counts.read(made_up(numbers).as_bytes()).map(<[(u64, u64)]>::to_vec);
        assert_eq!(read(&[-3, 7, 0, i64::MAX]), Some(vec![(3, 7), (5, i64::MAX.unsigned_abs())]));
        // As many empty places as can be counted, and one more.
        let all = [i64::MIN, -i64::MAX];
        assert_eq!(read(&all), Some(Vec::new()));
        assert_eq!(read(&[all[0], all[1], 0]), None);
        assert_eq!(read(&[all[0], all[1], 1]), None);
        assert_eq!(read(&[all[0], all[1], -1]), None);
    }

    #[test]
    fn what_is_no_histogram_is_none() {
        let mut counts = Counts::new();
        let good = text(Latency::of(&[Duration::from_micros(3); 10]).histogram());
        assert!(counts.read(good.as_bytes()).is_some());
        for end in 0..good.len() {
            assert!(counts.read(&good.as_bytes()[..end]).is_none(), "{end}");
        }
        let other = Histogram::<u64>::new_with_bounds(1, 1000, 2).unwrap();
        assert!(counts.read(text(&other).as_bytes()).is_none());
        assert!(counts.read(b"HISTFAAAABx42mNgYGBgBgAAFgAF").is_none());
        assert!(counts.read("ä".as_bytes()).is_none());
        // And goes on with the next.
        assert!(counts.read(good.as_bytes()).is_some());
    }
}
