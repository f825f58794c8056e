//! What memory holds, said without its bytes.
//!
//! A content belongs to addresses: it says which byte lies at which address, and two contents that
//! put the same bytes at the same addresses are equal. So a range can be cut, joined and copied
//! without looking at the bytes.

use std::sync::Arc;

use crate::{
    kernels::{self, Expected, Values, Written},
    nccl::{
        arithmetic::reduce,
        types::{DataType, Operation},
    },
};

/// By how much the state of the pattern, and the key of the checksum, grow from word to word, as in
/// `kernels/shared.cuh`.
pub(super) const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// How many levels a reduction of reductions has at most. One finds the results of the case before
/// in memory that has been given out again, and nobody looks at what it makes of them.
const DEPTH: usize = 2;

/// The bytes at a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The same eight bytes again and again, the first at multiples of eight.
    Repeated(u64),
    /// What a kernel writes. Its first element, whose word is the seed's first, begins at `phase`,
    /// which is less than an element; elements before and behind follow from it.
    Written { what: Written, phase: u64 },
    /// What a reduction leaves, its first element at `start`.
    Reduced { reduction: Arc<Reduction>, start: u64 },
}

/// A reduction of what ranks have sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reduction {
    pub data_type: DataType,
    pub operation: Operation,
    /// What is reduced, in order, as if the first element were at address 0.
    pub inputs: Vec<Input>,
}

/// What one rank gives to a reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    pub content: Content,
    /// The bits of what its elements are multiplied with.
    pub factor: u64,
}

/// The size of what follows from one word of the seed.
fn element_bytes(what: Written) -> u64 {
    match what {
        Written::Pattern { .. } => 8,
        Written::Given { values, .. } => values.element_bytes(),
    }
}

/// The same from its element number `element` on, which can be negative.
fn advanced(what: Written, element: i64) -> Written {
    let by = element.cast_unsigned().wrapping_mul(STEP);
    match what {
        Written::Pattern { seed, flip } => Written::Pattern { seed: seed.wrapping_add(by), flip },
        Written::Given { mut values, rank } => {
            values.seed = values.seed.wrapping_add(by);
            Written::Given { values, rank }
        }
    }
}

/// In which element an address is, and where in it, if the first element begins at `start`.
fn place(address: u64, start: u64, size: u64) -> (i64, u64) {
    let distance = address.wrapping_sub(start).cast_signed();
    let size = size.cast_signed();
    (distance.div_euclid(size), distance.rem_euclid(size).cast_unsigned())
}

impl Content {
    /// What a kernel writes from address `start` on.
    pub(crate) fn written(what: Written, start: u64) -> Self {
        let (element, phase) = place(start, 0, element_bytes(what));
        Self::Written { what: advanced(what, -element), phase }
    }

    /// How often reductions of reductions are in it.
    fn depth(&self) -> usize {
        match self {
            Self::Reduced { reduction, .. } => {
                1 + reduction.inputs.iter().map(|input| input.content.depth()).max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// `width` bytes of `value` again and again from a multiple of `width` on.
    pub(crate) fn set(value: u32, width: u64) -> Self {
        let value = u64::from(value);
        Self::Repeated(match width {
            1 => (value & 0xFF) * 0x0101_0101_0101_0101,
            2 => (value & 0xFFFF) * 0x0001_0001_0001_0001,
            _ => value << 32 | value,
        })
    }

    /// The same bytes at addresses that are larger by `by`, modulo 2^64.
    pub(crate) fn moved(&self, by: u64) -> Self {
        match self {
            Self::Repeated(word) => Self::Repeated(word.rotate_left(8 * (by % 8) as u32)),
            Self::Written { what, phase } => Self::written(*what, phase.wrapping_add(by)),
            Self::Reduced { reduction, start } => {
                Self::Reduced { reduction: Arc::clone(reduction), start: start.wrapping_add(by) }
            }
        }
    }

    /// Puts the bytes at `address` and behind it into `target`.
    pub(crate) fn evaluate(&self, address: u64, target: &mut [u8]) {
        match self {
            Self::Repeated(word) => {
                let word = word.rotate_right(8 * (address % 8) as u32).to_le_bytes();
                for bytes in target.chunks_mut(8) {
                    bytes.copy_from_slice(&word[..bytes.len()]);
                }
            }
            Self::Written { what, phase } => {
                let size = element_bytes(*what);
                let (element, before) = place(address, *phase, size);
                let what = advanced(*what, element);
                whole_elements(size, before, target, |whole| kernels::write(whole, what));
            }
            Self::Reduced { reduction, start } => {
                let (data_type, size) = (reduction.data_type, reduction.data_type.bytes());
                let (element, before) = place(address, *start, size);
                let first = element.wrapping_mul(size.cast_signed()).cast_unsigned();
                whole_elements(size, before, target, |whole| {
                    let inputs: Vec<(Vec<u8>, u64)> = reduction
                        .inputs
                        .iter()
                        .map(|input| {
                            let mut sent = vec![0; whole.len()];
                            input.content.evaluate(first, &mut sent);
                            (sent, input.factor)
                        })
                        .collect();
                    let inputs: Vec<(&[u8], u64)> =
                        inputs.iter().map(|(sent, factor)| (&sent[..], *factor)).collect();
                    reduce(data_type, reduction.operation, &inputs, whole);
                });
            }
        }
    }
}

/// What a comparison expects, and which contents are known to be that.
#[derive(Debug)]
pub(super) struct Right {
    expected: Expected,
    start: u64,
}

impl Right {
    /// Expected from address `start` on.
    pub(super) fn new(expected: Expected, start: u64) -> Self {
        Self { expected, start }
    }

    /// The size of what one word of the seed decides.
    pub(super) fn element_bytes(&self) -> u64 {
        match self.expected {
            Expected::Pattern { .. } => 8,
            Expected::Reduced { values, .. } => values.element_bytes(),
        }
    }

    /// The size of what is counted when it is wrong.
    pub(super) fn counted_bytes(&self) -> u64 {
        match self.expected {
            Expected::Pattern { .. } => 1,
            Expected::Reduced { values, .. } => values.element_bytes(),
        }
    }

    /// What is expected from element number `element` on.
    pub(super) fn beginning_at(&self, element: u64) -> Expected {
        let by = element.wrapping_mul(STEP);
        match self.expected {
            Expected::Pattern { seed } => Expected::Pattern { seed: seed.wrapping_add(by) },
            Expected::Reduced { mut values, tolerance } => {
                values.seed = values.seed.wrapping_add(by);
                Expected::Reduced { values, tolerance }
            }
        }
    }

    /// Whether a content is known to be what is expected, at all addresses.
    pub(super) fn is(&self, content: &Content) -> bool {
        match (self.expected, content) {
            (Expected::Pattern { seed }, content) => {
                *content == Content::written(Written::Pattern { seed, flip: 0 }, self.start)
            }
            (Expected::Reduced { values, .. }, Content::Reduced { reduction, start }) => {
                let (element, before) = place(self.start, *start, values.element_bytes());
                let seed = values.seed.wrapping_sub(element.cast_unsigned().wrapping_mul(STEP));
                before == 0 && reduction.is_of(Values { seed, ..values })
            }
            _ => false,
        }
    }
}

impl Reduction {
    /// Whether it can be described. A reduction of reductions takes longer to evaluate with each
    /// level, so that there are few.
    pub(crate) fn is_shallow(&self) -> bool {
        self.inputs.iter().all(|input| input.content.depth() < DEPTH)
    }

    /// Whether it reduces what all ranks give of `values`, whose numbers are such that every step
    /// is exact, so that the order does not count (`kernels/values.cu`).
    fn is_of(&self, values: Values) -> bool {
        let is_same = self.data_type as u32 == values.data_type
            && self.operation as u32 == values.reduction
            && self.inputs.len() as u64 == u64::from(values.ranks);
        let mut given = vec![false; self.inputs.len()];
        let mut gives = |input: &Input| match input.content {
            Content::Written { what: Written::Given { values: own, rank }, phase: 0 } => {
                let is_new = given
                    .get_mut(rank as usize)
                    .is_some_and(|given| !std::mem::replace(given, true));
                let is_scaled = self.operation != Operation::PreMulSum
                    || input.factor == factor_bits(self.data_type, rank);
                is_new && is_scaled && own == values
            }
            _ => false,
        };
        is_same && self.inputs.iter().all(&mut gives)
    }
}

/// The bits of a rank's factor in a sum that multiplies first: 1 or 2.
fn factor_bits(data_type: DataType, rank: u32) -> u64 {
    let log = u64::from(rank % 2);
    match data_type {
        DataType::Float16 => (15 + log) << 10,
        DataType::Bfloat16 => (127 + log) << 7,
        DataType::Float32 => (127 + log) << 23,
        DataType::Float64 => (1023 + log) << 52,
        DataType::Float8e4m3 => (7 + log) << 3,
        DataType::Float8e5m2 => (15 + log) << 2,
        _ => 1 << log,
    }
}

/// Lets `make` write whole elements of `size`, and puts them into `target`, which begins `before`
/// bytes behind the beginning of the first.
fn whole_elements(size: u64, before: u64, target: &mut [u8], make: impl FnOnce(&mut [u8])) {
    let (size, before) = (size as usize, before as usize);
    let is_aligned = target.as_ptr().addr().is_multiple_of(size);
    if before == 0 && target.len().is_multiple_of(size) && is_aligned {
        return make(target);
    }
    let mut words = vec![0_u64; (before + target.len()).div_ceil(8) + 1];
    // SAFETY: any bytes are a byte, and a word has no others.
    let (_, bytes, _) = unsafe { words.align_to_mut::<u8>() };
    let whole = (before + target.len()).next_multiple_of(size);
    make(&mut bytes[..whole]);
    target.copy_from_slice(&bytes[before..before + target.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Values;

    const START: u64 = 0x7f00_0000_1003;
    const PATTERN: Written = Written::Pattern { seed: 7, flip: 0x0102_0408_1020_4080 };

    fn given(data_type: u32, rank: u32) -> Written {
        let values = Values { data_type, reduction: 0, ranks: 3, seed: 9 };
        Written::Given { values, rank }
    }

    /// The first bytes of what is written, as its kernel writes them.
    fn bytes(what: Written, count: usize) -> Vec<u8> {
        let mut words = vec![0_u64; count.div_ceil(8)];
        // SAFETY: any bytes are a byte, and a word has no others.
        let (_, bytes, _) = unsafe { words.align_to_mut::<u8>() };
        kernels::write(bytes, what);
        words.iter().flat_map(|word| word.to_ne_bytes()).take(count).collect()
    }

    fn evaluated(content: &Content, address: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        content.evaluate(address, &mut bytes);
        bytes
    }

    #[test]
    fn a_part_is_what_lies_there_in_the_whole_wherever_it_is_moved() {
        for what in [PATTERN, given(8, 1), given(7, 2), given(6, 0), given(11, 1)] {
            let whole = bytes(what, 400);
            let content = Content::written(what, START);
            for by in [0, 1, 7, 8, 4096, 3_u64.wrapping_neg(), START.wrapping_neg()] {
                let moved = content.moved(by);
                assert_eq!(moved.moved(by.wrapping_neg()), content);
                for (first, count) in [(0, 400), (1, 20), (13, 1), (8, 64), (399, 1)] {
                    let address = START.wrapping_add(by) + first as u64;
                    let found = evaluated(&moved, address, count);
                    assert_eq!(found, whole[first..first + count], "{what:?} {by} {first}");
                }
            }
        }
    }

    #[test]
    fn the_same_bytes_are_the_same_content() {
        let later = Written::Pattern { seed: STEP.wrapping_mul(3).wrapping_add(7), flip: 0 };
        let first = Written::Pattern { seed: 7, flip: 0 };
        assert_eq!(Content::written(later, START + 24), Content::written(first, START));
        assert_ne!(Content::written(later, START + 16), Content::written(first, START));
    }

    #[test]
    fn a_value_is_repeated_in_its_width() {
        for (width, value, expected) in [
            (1, 0x105, [5, 5, 5, 5, 5]),
            (2, 0x201, [1, 2, 1, 2, 1]),
            (4, 0x0403_0201, [1, 2, 3, 4, 1]),
        ] {
            let content = Content::set(value, width);
            assert_eq!(evaluated(&content, 1 << 20, 5), expected);
            assert_eq!(evaluated(&content.moved(3), (1 << 20) + 3, 5), expected);
            assert_eq!(evaluated(&content, (1 << 20) + 1, 4), expected[1..]);
        }
    }

    #[test]
    fn a_reduction_is_evaluated_element_by_element() {
        let inputs =
            [0, 1, 2].map(|rank| Input { content: Content::written(given(2, rank), 0), factor: 0 });
        let reduction = Arc::new(Reduction {
            data_type: DataType::Int32,
            operation: Operation::Sum,
            inputs: inputs.to_vec(),
        });
        let content = Content::Reduced { reduction, start: START };
        let sent = [0, 1, 2].map(|rank| bytes(given(2, rank), 400));
        let sum = |at: usize| {
            let element =
                |sent: &Vec<u8>| i32::from_ne_bytes(sent[4 * at..4 * at + 4].try_into().unwrap());
            sent.iter().map(element).sum::<i32>().to_ne_bytes()
        };
        let whole: Vec<u8> = (0..100).flat_map(sum).collect();
        for (first, count) in [(0, 400), (3, 17), (10, 1)] {
            let found = evaluated(&content.moved(5), START + 5 + first as u64, count);
            assert_eq!(found, whole[first..first + count]);
        }
    }
}
