//! What the memory of simulated GPUs holds, as far as it is known without looking at its bytes.
//!
//! Memory that only this process's operations read and write is *describable*: an operation can
//! note what it leaves there instead of storing it. What is not described lies in memory as bytes.
//! Whoever needs bytes of a description has them evaluated, block by block.

use std::{borrow::Cow, collections::VecDeque, ops::Range};

use rangemap::{RangeMap, RangeSet};

use super::{
    content::{Content, Right, STEP},
    host_lacks,
    repeats::Repeats,
    warn_of_lack,
};
use crate::kernels::{Expected, Wrong, compare_part};

/// How much is evaluated at once.
const BLOCK: u64 = 64 << 10;
/// How much is compared byte by byte at either end of what is known to be right.
const EDGE: u64 = 512;
/// Sums that are remembered.
const SUMS: usize = 64;

/// The contents of all memory of this process.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    describable: RangeSet<u64>,
    described: RangeMap<u64, Content>,
    sums: VecDeque<Sum>,
    /// Which copies of real bytes would change nothing.
    pub repeats: Repeats,
    /// Whether something could not be stored, because the host has no memory left.
    pub is_starved: bool,
}

/// Part of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub range: Range<u64>,
    /// `None`: what it holds lies there.
    pub content: Option<Content>,
}

/// What the words of described memory add up to.
#[derive(Debug)]
struct Sum {
    start: u64,
    segments: Vec<Segment>,
    sum: u64,
}

/// The range of `bytes` at `start`.
pub(crate) fn range(start: u64, bytes: u64) -> Range<u64> {
    start..start + bytes
}

impl Contents {
    /// The range holds zeroes, and only this process's operations read and write it.
    pub(crate) fn open(&mut self, range: Range<u64>) {
        self.describable.insert(range.clone());
        self.described.insert(range, Content::Repeated(0));
    }

    /// From now on others look at the range, too: its bytes are stored, for good. Whether the host
    /// has the memory for them.
    pub(crate) fn close(&mut self, range: Range<u64>) -> bool {
        let is_stored = self.try_to_store(&range);
        if is_stored && !range.is_empty() {
            self.describable.remove(range);
        }
        is_stored
    }

    /// The pages of the range have been given back, so that it holds zeroes.
    pub(crate) fn cleared(&mut self, range: &Range<u64>) {
        let parts: Vec<Range<u64>> = self.describable_parts(range);
        for part in parts {
            self.described.insert(part, Content::Repeated(0));
        }
    }

    /// Whether a part of the range is described.
    pub(crate) fn is_described(&self, range: &Range<u64>) -> bool {
        !range.is_empty() && self.described.overlaps(range)
    }

    /// Whether a part of the range can be described.
    pub(crate) fn is_describable(&self, range: &Range<u64>) -> bool {
        !range.is_empty() && self.describable.overlaps(range)
    }

    /// The whole range is about to be written.
    pub(crate) fn forget(&mut self, range: &Range<u64>) {
        if !range.is_empty() {
            self.described.remove(range.clone());
        }
    }

    /// Makes the range hold `content`.
    pub(crate) fn put(&mut self, range: Range<u64>, content: &Content) {
        if range.is_empty() {
            return;
        }
        let real: Vec<Range<u64>> = self.describable.gaps(&range).collect();
        for part in self.describable_parts(&range) {
            self.described.insert(part, content.clone());
        }
        real.iter().for_each(|part| evaluate_into_memory(content, part));
    }

    fn describable_parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        if range.is_empty() {
            return Vec::new();
        }
        let parts = self.describable.overlapping(range);
        parts.map(|part| part.start.max(range.start)..part.end.min(range.end)).collect()
    }

    /// The parts of a range, in order.
    pub(crate) fn segments(&self, range: &Range<u64>) -> Vec<Segment> {
        let mut segments = Vec::new();
        if range.is_empty() {
            return segments;
        }
        let mut at = range.start;
        for (part, content) in self.described.overlapping(range) {
            let (start, end) = (part.start.max(range.start), part.end.min(range.end));
            if at < start {
                segments.push(Segment { range: at..start, content: None });
            }
            segments.push(Segment { range: start..end, content: Some(content.clone()) });
            at = end;
        }
        if at < range.end {
            segments.push(Segment { range: at..range.end, content: None });
        }
        segments
    }

    /// What is at all of a range, if that is one content.
    pub(crate) fn content(&self, range: &Range<u64>) -> Option<&Content> {
        let (part, content) = self.described.get_key_value(&range.start)?;
        (range.end <= part.end).then_some(content)
    }

    /// Makes memory from `address` on hold `bytes`.
    pub(crate) fn put_bytes(&mut self, address: u64, bytes: &[u8]) {
        self.forget(&range(address, bytes.len() as u64));
        // SAFETY: the range is memory that an operation which is being executed writes.
        unsafe { std::ptr::copy(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }

    /// Stores the bytes of what is described of a range.
    pub(crate) fn store(&mut self, range: &Range<u64>) {
        self.is_starved |= !self.try_to_store(range);
    }

    /// The same; whether the host has the memory for them.
    fn try_to_store(&mut self, range: &Range<u64>) -> bool {
        for segment in self.segments(range) {
            let (part, Some(content)) = (segment.range, segment.content) else { continue };
            let bytes = part.end - part.start;
            if host_lacks(bytes, 0) {
                // Without this the host would kill some process.
                warn_of_lack(bytes, "as the bytes of memory");
                return false;
            }
            evaluate_into_memory(&content, &part);
            self.described.remove(part);
        }
        true
    }

    /// Puts the bytes at `address` and behind it into `target`.
    pub(crate) fn read(&self, address: u64, target: &mut [u8]) {
        for Segment { range: part, content } in self.segments(&range(address, target.len() as u64))
        {
            let place = (part.start - address) as usize..(part.end - address) as usize;
            let target = &mut target[place];
            match content {
                Some(content) => content.evaluate(part.start, target),
                // SAFETY: the range is memory that an operation which is being executed reads,
                // and that lies there as it is not described.
                None => unsafe {
                    std::ptr::copy(part.start as *const u8, target.as_mut_ptr(), target.len());
                },
            }
        }
    }

    /// The bytes of a range: those that are stored there, or else what they are evaluated to.
    pub(crate) fn bytes(&self, range: &Range<u64>) -> Cow<'_, [u8]> {
        let bytes = (range.end - range.start) as usize;
        if self.is_described(range) {
            let mut evaluated = vec![0; bytes];
            self.read(range.start, &mut evaluated);
            return Cow::Owned(evaluated);
        }
        // SAFETY: the range is memory that an operation which is being executed reads, and no
        // operation is executed beside it.
        Cow::Borrowed(unsafe { std::slice::from_raw_parts(range.start as *const u8, bytes) })
    }

    /// Copies `bytes` from `source` to `target`.
    pub(crate) fn copy(&mut self, target: u64, source: u64, bytes: u64) {
        let (from, to) = (range(source, bytes), range(target, bytes));
        if from == to || from.is_empty() {
            return;
        }
        if !self.is_describable(&to) || from.start < to.end && to.start < from.end {
            // Its bytes are needed, and then they may be needed once more.
            self.store(&from);
        }
        let moved = target.wrapping_sub(source);
        let segments = self.segments(&from);
        for Segment { range: part, content } in segments {
            let to = part.start.wrapping_add(moved)..part.end.wrapping_add(moved);
            match content {
                Some(content) => self.put(to, &content.moved(moved)),
                None => {
                    self.forget(&to);
                    let bytes = (part.end - part.start) as usize;
                    // SAFETY: both ranges are memory that an operation which is being executed
                    // reads and writes.
                    unsafe {
                        std::ptr::copy(part.start as *const u8, to.start as *mut u8, bytes);
                    }
                }
            }
        }
    }

    /// Compares a range with what is expected there.
    pub(crate) fn compare(&self, found: &Range<u64>, expected: Expected) -> Wrong {
        let right = Right::new(expected, found.start);
        let unit = right.element_bytes();
        // What has to be looked at, from the beginning on.
        let mut looked = RangeSet::new();
        let mut look = |begin: u64, end: u64| {
            let (begin, end) = (begin - found.start, end - found.start);
            let end = end.next_multiple_of(unit).min(found.end - found.start);
            looked.insert(begin / unit * unit..end);
        };
        for Segment { range: part, content } in self.segments(found) {
            if content.is_some_and(|content| right.is(&content)) {
                look(part.start, part.end.min(part.start + EDGE));
                look(part.start.max(part.end.saturating_sub(EDGE)), part.end);
            } else {
                look(part.start, part.end);
            }
        }
        let mut wrong = Wrong::NONE;
        let mut block = vec![0_u64; BLOCK as usize / 8];
        // SAFETY: any bytes are a byte, and a word has no others.
        let (_, block, _) = unsafe { block.align_to_mut::<u8>() };
        for part in looked.iter() {
            for begin in (part.start..part.end).step_by(BLOCK as usize) {
                let bytes = (part.end - begin).min(BLOCK) as usize;
                self.read(found.start + begin, &mut block[..bytes]);
                let here = compare_part(&block[..bytes], right.beginning_at(begin / unit));
                wrong.count += here.count;
                if here.count > 0 {
                    wrong.first = wrong.first.min(here.first + begin / right.counted_bytes());
                }
            }
        }
        wrong
    }

    /// What all words of a range add up to, each xor its key, as `read_only` of `kernels/copy.cu` has
    /// it; `None`: some of it is not described.
    pub(crate) fn sum(&mut self, range: &Range<u64>) -> Option<u64> {
        let segments = self.segments(range);
        if segments.iter().any(|segment| segment.content.is_none()) {
            return None;
        }
        let same = |known: &&Sum| known.start == range.start && known.segments == segments;
        if let Some(known) = self.sums.iter().find(same) {
            return Some(known.sum);
        }
        let mut sum = 0_u64;
        let mut block = vec![0; BLOCK as usize];
        let mut key = 0_u64;
        for begin in (range.start..range.end).step_by(BLOCK as usize) {
            let bytes = (range.end - begin).min(BLOCK) as usize;
            self.read(begin, &mut block[..bytes]);
            let (words, tail) = block[..bytes].as_chunks();
            for word in words {
                sum = sum.wrapping_add(u64::from_le_bytes(*word) ^ key);
                key = key.wrapping_add(STEP);
            }
            for (shift, byte) in (0..).step_by(8).zip(tail) {
                sum = sum.wrapping_add((u64::from(*byte) ^ (key >> shift & 0xFF)) << shift);
            }
        }
        if self.sums.len() == SUMS {
            self.sums.pop_front();
        }
        self.sums.push_back(Sum { start: range.start, segments, sum });
        Some(sum)
    }
}

/// Stores the bytes of a content where they belong.
fn evaluate_into_memory(content: &Content, part: &Range<u64>) {
    for begin in (part.start..part.end).step_by(BLOCK as usize) {
        let bytes = (part.end - begin).min(BLOCK) as usize;
        // SAFETY: the range is memory of this process that an operation which is being executed
        // writes, or that is described, which nobody else looks at.
        let target = unsafe { std::slice::from_raw_parts_mut(begin as *mut u8, bytes) };
        content.evaluate(begin, target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Values, Written};

    const SIZE: usize = 10_000;

    /// Memory that is described, and holds something else.
    struct Described {
        contents: Contents,
        memory: Vec<u64>,
    }

    impl Described {
        fn new() -> Self {
            let memory = vec![0x1111_1111_1111_1111; 2 * SIZE / 8];
            let mut contents = Contents::default();
            contents.open(range(memory.as_ptr() as u64, 2 * SIZE as u64));
            Self { contents, memory }
        }

        /// The first or second half.
        fn half(&self, number: u64) -> Range<u64> {
            range(self.memory.as_ptr() as u64 + number * SIZE as u64, SIZE as u64)
        }

        fn fill(&mut self, number: u64, seed: u64, flip: u64) {
            let half = self.half(number);
            let what = Written::Pattern { seed, flip };
            let content = Content::written(what, half.start);
            self.contents.put(half, &content);
        }

        fn bytes(&self, range: &Range<u64>) -> Vec<u8> {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            self.contents.read(range.start, &mut bytes);
            bytes
        }

        fn compare(&self, number: u64, seed: u64) -> (u64, u64) {
            let wrong = self.contents.compare(&self.half(number), Expected::Pattern { seed });
            (wrong.count, wrong.first)
        }
    }

    #[test]
    fn new_memory_holds_zeroes_and_then_what_was_put_there() {
        let mut described = Described::new();
        let whole = described.half(0);
        assert_eq!(described.bytes(&whole), [0; SIZE]);
        let part = whole.start + 3..whole.start + 10;
        described.contents.put(part, &Content::set(7, 1));
        described.contents.put_bytes(whole.start + 5, &[1, 2]);
        assert_eq!(described.bytes(&whole)[..12], [0, 0, 0, 7, 7, 1, 2, 7, 7, 7, 0, 0]);
        described.contents.cleared(&(whole.start + 4..whole.start + 6));
        assert_eq!(described.bytes(&whole)[..8], [0, 0, 0, 7, 0, 0, 2, 7]);
    }

    #[test]
    fn what_is_closed_is_stored_now_and_from_then_on() {
        let mut described = Described::new();
        described.fill(0, 1, 0);
        let whole = described.half(0);
        let bytes = described.bytes(&whole);
        let word = whole.start + 80..whole.start + 88;
        assert!(described.contents.close(word.clone()));
        let stored = |described: &Described| described.memory[10].to_ne_bytes();
        assert_eq!(stored(&described), bytes[80..88]);
        assert_eq!(described.memory[9], 0x1111_1111_1111_1111, "beside it nothing is stored");
        assert!(!described.contents.is_described(&word));
        assert_eq!(described.bytes(&whole), bytes);
        described.contents.put(whole, &Content::set(9, 1));
        assert_eq!(stored(&described), [9; 8]);
    }

    #[test]
    fn a_copy_has_the_same_bytes_however_they_are_known() {
        for (from, to) in [(0, 0), (3, 5), (8, 0), (1, 0)] {
            let mut described = Described::new();
            described.fill(0, 1, 0);
            let [source, target] = [described.half(0), described.half(1)];
            described.contents.put_bytes(source.start + 100, &[1, 2, 3]);
            let count = SIZE as u64 - 10;
            let expected = described.bytes(&range(source.start + from, count));
            described.contents.copy(target.start + to, source.start + from, count);
            assert!(described.bytes(&range(target.start + to, count)) == expected);
            // What was copied stays when the source changes.
            described.fill(0, 2, 0);
            assert!(described.bytes(&range(target.start + to, count)) == expected);
            // Onto itself, as memmove does it.
            described.contents.copy(target.start + to + 7, target.start + to, count - 20);
            let moved = described.bytes(&range(target.start + to + 7, count - 20));
            assert!(moved == expected[..expected.len() - 20]);
        }
    }

    #[test]
    fn a_comparison_finds_each_wrong_byte_and_nothing_else() {
        let mut described = Described::new();
        described.fill(1, 42, 0);
        assert_eq!(described.compare(1, 42), (0, u64::MAX));
        described.fill(1, 42, u64::MAX);
        assert_eq!(described.compare(1, 42), (SIZE as u64, 0));
        assert!(described.compare(1, 43).0 > SIZE as u64 * 98 / 100);
        let whole = described.half(1);
        let mut wrong: Vec<u64> = Vec::new();
        described.fill(1, 42, 0);
        for place in [9_999, 5_000, 4_999, 512, 511, 8, 7, 0] {
            let byte = described.bytes(&range(whole.start + place, 1))[0];
            described.contents.put_bytes(whole.start + place, &[byte ^ 1]);
            wrong.push(place);
            assert_eq!(described.compare(1, 42), (wrong.len() as u64, place));
        }
        // From anywhere in the pattern on.
        described.fill(1, 42, 0);
        let part = whole.start + 4097..whole.end;
        let shifted = described.contents.compare(&part, Expected::Pattern { seed: 42 });
        assert!(shifted.count > 5000 && shifted.first < 3, "{shifted:?}");
    }

    #[test]
    fn a_reduction_of_what_ranks_give_is_right_and_any_other_is_looked_at() {
        use crate::{
            memory::content::{Input, Reduction},
            nccl::types::{DataType, Operation},
        };
        let values = Values { data_type: 7, reduction: 0, ranks: 3, seed: 5 };
        let reduced = |numbers: [u32; 3], start| {
            let inputs = numbers.map(|rank| {
                let content = Content::written(Written::Given { values, rank }, 0);
                Input { content, factor: 0 }
            });
            let reduction = Reduction {
                data_type: DataType::Float32,
                operation: Operation::Sum,
                inputs: inputs.to_vec(),
            };
            Content::Reduced { reduction: reduction.into(), start }
        };
        let mut described = Described::new();
        let whole = described.half(0);
        let expected = Expected::Reduced { values, tolerance: 0 };
        let compare = |described: &Described| {
            let wrong = described.contents.compare(&whole, expected);
            (wrong.count, wrong.first)
        };
        described.contents.put(whole.clone(), &reduced([2, 0, 1], whole.start));
        assert_eq!(compare(&described), (0, u64::MAX));
        described.contents.put_bytes(whole.start + 4002, &[0xFF]);
        assert_eq!(compare(&described), (1, 1000));
        described.contents.put(whole.clone(), &reduced([1, 1, 0], whole.start));
        assert!(compare(&described).0 > 2000);
        described.contents.put(whole.clone(), &reduced([0, 1, 2], whole.start + 4));
        assert!(compare(&described).0 > 2000);
    }

    #[test]
    fn a_sum_is_that_of_the_words_each_xor_its_key() {
        let mut described = Described::new();
        described.fill(0, 3, 0);
        let part = described.half(0).start + 8..described.half(0).end - 5;
        let mut bytes = described.bytes(&part);
        let keys = (0..).flat_map(|index| STEP.wrapping_mul(index).to_le_bytes());
        bytes.iter_mut().zip(keys).for_each(|(byte, key)| *byte ^= key);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let sum = words.fold(0, u64::wrapping_add);
        assert_eq!(described.contents.sum(&part), Some(sum));
        assert_eq!(described.contents.sum(&part), Some(sum), "once more");
        described.contents.put_bytes(part.start, &[0]);
        assert_eq!(described.contents.sum(&part), None);
    }
}
