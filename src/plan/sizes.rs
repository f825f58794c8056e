//! The sizes of a sweep: `64`, `4K..64M`, `1K,1M,3M`, or a mixture of them.

use crate::units::{BadSize, Bytes};

/// What is measured of host memory unless the user says otherwise: 64 bytes, a line of the caches,
/// to 64 MiB, doubling.
pub(super) fn of_host() -> Vec<Bytes> {
    (0..21).map(|doubled| Bytes::new(64 << doubled)).collect()
}

/// Reads a list of sizes. None is zero, and each is there once, in the order in which they were
/// written.
pub(super) fn list(text: &str) -> Result<Vec<Bytes>, String> {
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
    Ok(sizes)
}

/// From the first to the last, doubling; the last is always among them.
fn doubling(from: &str, to: &str) -> Result<Vec<Bytes>, String> {
    let (first, last) = (positive(from)?, positive(to)?);
    if first > last {
        return Err(format!(
            "`{from}..{to}` is empty: the first size of a range is the smaller one"
        ));
    }
    let next = |size: &Bytes| Some(size.times(2)).filter(|&next| next < last && next > *size);
    let mut sizes: Vec<Bytes> = std::iter::successors(Some(first), next).collect();
    if first < last {
        sizes.push(last);
    }
    Ok(sizes)
}

fn positive(text: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|err: BadSize| err.to_string())?;
    if size == Bytes::new(0) {
        return Err("a size of 0 moves nothing: the smallest is 1".to_owned());
    }
    Ok(size)
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
        list(text).unwrap().into_iter().map(Bytes::get).collect()
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
        let refuse = |text: &str| list(text).unwrap_err();
        assert_eq!(refuse("0"), "a size of 0 moves nothing: the smallest is 1");
        assert_eq!(refuse("0..4K"), "a size of 0 moves nothing: the smallest is 1");
        assert!(refuse("8K..4K").starts_with("`8K..4K` is empty"));
        assert!(refuse("").contains("is not a size"));
        assert!(refuse("4K,").contains("is not a size"));
        assert!(refuse("4K..").contains("is not a size"));
        assert!(refuse("64T").contains("`64T` is not a size"));
        assert!(refuse("1e6").contains("`1e6` is not a size"));
        assert!(refuse("99999999999G").contains("too large"));
    }
}
