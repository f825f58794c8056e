//! The sizes of a sweep: `64`, `4K..64M`, `1K,1M,3M`, or a mixture of them.

use std::str::FromStr;

use crate::units::{BadSize, Bytes};

/// A list of sizes, none of them zero, each once, in the order in which they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<Bytes>);

/// A list of sizes that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSizes {
    /// One of them is no size.
    #[error(transparent)]
    Size(#[from] BadSize),
    /// A transfer of nothing.
    #[error("a size of 0 moves nothing: the smallest is 1")]
    Zero,
    /// A range that ends before it begins.
    #[error("`{from}..{to}` is empty: the first size of a range is the smaller one")]
    Backwards {
        /// As it was written.
        from: String,
        /// As it was written.
        to: String,
    },
}

impl Sizes {
    /// What is measured of host memory unless the user says otherwise: 64 bytes, a line of the
    /// caches, to 64 MiB, doubling.
    pub fn of_host() -> Self {
        Self((0..21).map(|doubled| Bytes::new(64 << doubled)).collect())
    }
}

impl FromStr for Sizes {
    type Err = BadSizes;

    fn from_str(text: &str) -> Result<Self, BadSizes> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            let part_sizes = match part.split_once("..") {
                Some((from, to)) => doubling(from, to)?,
                None => vec![positive(part)?],
            };
            for size in part_sizes {
                if !sizes.contains(&size) {
                    sizes.push(size);
                }
            }
        }
        Ok(Self(sizes))
    }
}

/// From the first to the last, doubling; the last is always among them.
fn doubling(from: &str, to: &str) -> Result<Vec<Bytes>, BadSizes> {
    let (first, last) = (positive(from)?, positive(to)?);
    if first > last {
        return Err(BadSizes::Backwards { from: from.to_owned(), to: to.to_owned() });
    }
    let next = |size: &Bytes| Some(size.times(2)).filter(|&next| next < last && next > *size);
    let mut sizes: Vec<Bytes> = std::iter::successors(Some(first), next).collect();
    if first < last {
        sizes.push(last);
    }
    Ok(sizes)
}

fn positive(text: &str) -> Result<Bytes, BadSizes> {
    let size: Bytes = text.parse()?;
    if size == Bytes::new(0) { Err(BadSizes::Zero) } else { Ok(size) }
}

/// From one size to the next one, as nccl-tests tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// By a factor.
    Factor(u64),
    /// By so many bytes more.
    Bytes(Bytes),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<u64> {
        text.parse::<Sizes>().unwrap().0.into_iter().map(Bytes::get).collect()
    }

    #[test]
    fn a_range_doubles_and_ends_with_its_last() {
        assert_eq!(read("64..512"), [64, 128, 256, 512]);
        assert_eq!(read("4K..10K"), [4096, 8192, 10240]);
        assert_eq!(read("1M..1M"), [1 << 20]);
        assert_eq!(read("1..3"), [1, 2, 3]);
        assert_eq!(read("64..64M").len(), 21);
    }

    #[test]
    fn the_largest_range_ends() {
        assert_eq!(read("1..18446744073709551615").len(), 65);
    }

    #[test]
    fn lists_and_ranges_mix_and_repeat_nothing() {
        assert_eq!(read("1M,64..256,128,3"), [1 << 20, 64, 128, 256, 3]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_reason() {
        let refuse = |text: &str| text.parse::<Sizes>().unwrap_err().to_string();
        assert_eq!(refuse("0"), "a size of 0 moves nothing: the smallest is 1");
        assert_eq!(refuse("0..4K"), "a size of 0 moves nothing: the smallest is 1");
        assert!(refuse("8K..4K").starts_with("`8K..4K` is empty"));
        assert!(refuse("").contains("is not a size"));
        assert!(refuse("4K,").contains("is not a size"));
        assert!(refuse("4K..").contains("is not a size"));
        assert!(refuse("64MB").contains("`64MB` is not a size"));
        assert!(refuse("1e6").contains("`1e6` is not a size"));
        assert!(refuse("99999999999G").contains("too large"));
    }
}
