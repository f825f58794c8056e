//! Words of memory that streams write and wait for: which word, when it held what. Pure.

/// Words that are remembered; the one written longest ago gives way.
const WORDS: usize = 512;
/// Writes that are remembered of a word.
const WRITES: usize = 32;

/// A word of memory, the same in all processes that can see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Key {
    /// Device of the file that holds it; for private memory 0.
    pub device: u64,
    /// Inode of that file; for private memory the process.
    pub inode: u64,
    /// Place in that file; for private memory the address.
    pub offset: u64,
    /// Its bits, 32 or 64; words of different widths are different words.
    pub bits: u64,
}

impl Key {
    /// The counter, of `counters`, of writes to the memory that begins with this word.
    pub(crate) fn counter(&self, counters: usize) -> usize {
        let mixed = (self.inode ^ self.device.rotate_left(32))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(self.offset / 512)
            .wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed >> 32) as usize % counters
    }
}

/// When a word satisfies one who waits for it, as `cuStreamWaitValue32` defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Condition {
    pub test: Test,
    /// Whether the word has 64 bits, rather than 32.
    pub wide: bool,
}

/// How a word is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Test {
    /// It has reached the operand, going round at its width.
    Reached,
    /// It equals the operand.
    Equal,
    /// It has a bit in common with the operand.
    And,
    /// A bit is set neither in it nor in the operand.
    Nor,
}

impl Condition {
    /// Whether `value` satisfies it.
    pub(crate) fn holds(self, value: u64, operand: u64) -> bool {
        let width = if self.wide { 64 } else { 32 };
        // The bits above the width are shifted out.
        let of_width = |bits: u64| bits << (64 - width);
        match self.test {
            Test::Reached => of_width(value.wrapping_sub(operand)) >> 63 == 0,
            Test::Equal => of_width(value ^ operand) == 0,
            Test::And => of_width(value & operand) != 0,
            Test::Nor => of_width(!(value | operand)) != 0,
        }
    }
}

/// A write to a word by a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Write {
    pub value: u64,
    pub time_ps: u64,
    /// Who executes it: the process, and the number in its order.
    pub place: u64,
    pub index: u64,
}

/// What is remembered of a word.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Word {
    key: Key,
    /// When it was last used, counted in writes of all words.
    used: u64,
    /// Writes that were ever noted.
    count: u64,
    writes: [Write; WRITES],
}

/// What is remembered of all words.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Words {
    clock: u64,
    words: [Word; WORDS],
}

impl Words {
    /// Notes a write. Twice the same is once.
    pub(crate) fn note(&mut self, key: Key, write: Write) {
        self.clock += 1;
        let found = self.words.iter().position(|word| word.key == key && word.count > 0);
        let at = found.unwrap_or_else(|| {
            let oldest = (0..WORDS).min_by_key(|&at| self.words[at].used).unwrap_or(0);
            self.words[oldest] = Word { key, ..Word::default() };
            oldest
        });
        let word = &mut self.words[at];
        word.used = self.clock;
        if word.count > 0 && word.writes[(word.count - 1) as usize % WRITES] == write {
            return;
        }
        word.writes[word.count as usize % WRITES] = write;
        word.count += 1;
    }

    /// The write that satisfies one who waits from `ready_ps` on: the one in force then, or
    /// else the first one after.
    pub(crate) fn satisfied(
        &self,
        key: Key,
        ready_ps: u64,
        holds: impl Fn(u64) -> bool,
    ) -> Option<Write> {
        let writes = self.writes(key);
        let in_force = writes.clone().filter(|write| write.time_ps <= ready_ps).last();
        in_force.filter(|write| holds(write.value)).or_else(|| {
            writes.filter(|write| write.time_ps > ready_ps).find(|write| holds(write.value))
        })
    }

    /// Forgets a word, if `stale` says so of the writes that are remembered, oldest first.
    pub(crate) fn forget_if(
        &mut self,
        key: Key,
        stale: impl Fn(&mut dyn Iterator<Item = Write>) -> bool,
    ) {
        if stale(&mut self.writes(key))
            && let Some(word) = self.words.iter_mut().find(|word| word.key == key)
        {
            *word = Word::default();
        }
    }

    fn writes(&self, key: Key) -> impl Iterator<Item = Write> + Clone {
        let word = self.words.iter().find(|word| word.key == key && word.count > 0);
        word.into_iter().flat_map(|word| {
            let first = word.count.saturating_sub(WRITES as u64);
            (first..word.count).map(|number| word.writes[number as usize % WRITES])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(test: Test, wide: bool, value: u64, operand: u64) -> bool {
        Condition { test, wide }.holds(value, operand)
    }

    #[test]
    fn conditions_are_those_of_the_driver() {
        assert!(holds(Test::Reached, false, 7, 7));
        assert!(!holds(Test::Reached, false, 6, 7));
        assert!(holds(Test::Reached, false, 3, 0xFFFF_FFFE), "the word went round");
        assert!(!holds(Test::Reached, true, 3, 0xFFFF_FFFE_0000_0000 >> 32));
        assert!(holds(Test::Equal, false, 0x1_0000_0005, 5), "only 32 bits count");
        assert!(!holds(Test::Equal, true, 0x1_0000_0005, 5));
        assert!(holds(Test::And, false, 6, 3));
        assert!(!holds(Test::And, false, 4, 3));
        assert!(holds(Test::Nor, false, 1, 2));
        assert!(!holds(Test::Nor, false, 0xFFFF_0000, 0x0000_FFFF));
    }

    #[test]
    fn the_write_in_force_counts_and_not_one_before_it() {
        // SAFETY: `Words` is integers only, for which zeroes are a value.
        let mut words: Box<Words> = unsafe { Box::new_zeroed().assume_init() };
        let key = Key { device: 1, inode: 2, offset: 3, bits: 32 };
        let write = |value, time_ps| Write { value, time_ps, place: 0, index: time_ps };
        words.note(key, write(1, 10));
        words.note(key, write(0, 20));
        words.note(key, write(1, 40));
        let time = |ready_ps| words.satisfied(key, ready_ps, |value| value == 1).map(|w| w.time_ps);
        assert_eq!(time(0), Some(10));
        assert_eq!(time(15), Some(10));
        assert_eq!(time(30), Some(40));
        assert_eq!(words.satisfied(key, 0, |value| value == 2), None);
    }
}
