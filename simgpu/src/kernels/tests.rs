//! Every kernel against a formula or a plain loop, at all alignments.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;

const SEED: u64 = 20_261_121;
/// Blocks and threads: one thread, few, as many as a large GPU gets.
const SHAPES: [(u32, u32); 3] = [(1, 1), (3, 32), (132, 512)];
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const PAGE: usize = 4 << 10;
const HUGE_PAGE: usize = 2 << 20;

/// What a kernel takes.
enum Parameter {
    Word(u64),
    Half(u32),
}

use Parameter::{Half, Word};

fn launch(name: &str, (grid, block): (u32, u32), parameters: &[Parameter]) -> Launch {
    let bytes = |parameter: &Parameter| match parameter {
        Word(word) => word.to_le_bytes().to_vec(),
        Half(half) => half.to_le_bytes().to_vec(),
    };
    Launch {
        kernel: KERNELS.iter().find(|kernel| kernel.name == name).unwrap(),
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        parameters: parameters.iter().map(bytes).collect(),
        multicast: Multicast::default(),
    }
}

/// Runs a kernel that asks for no latency.
fn run(name: &str, shape: (u32, u32), parameters: &[Parameter]) {
    let launch = launch(name, shape, parameters);
    // SAFETY: every caller passes the addresses of live locals, and their sizes.
    unsafe { launch.run(&|_| unreachable!("only `chase` asks")) };
}

/// Memory that begins `alignment` bytes behind a boundary of 16, between two guards.
struct Memory {
    bytes: Vec<u8>,
    guard: u8,
    begin: usize,
    size: usize,
}

impl Memory {
    const GUARDS: usize = 64;

    fn new(size: usize, alignment: usize, guard: u8) -> Self {
        let bytes = vec![guard; size + 2 * Self::GUARDS + 16];
        let begin = Self::GUARDS + bytes[Self::GUARDS..].as_ptr().align_offset(16) + alignment;
        Self { bytes, guard, begin, size }
    }

    /// For a target. Its guards are not those of a source, so that a copy of those is seen.
    fn empty(size: usize, alignment: usize) -> Self {
        Self::new(size, alignment, 0xA5)
    }

    fn holding(content: &[u8], alignment: usize) -> Self {
        let mut memory = Self::new(content.len(), alignment, 0x3C);
        memory.content_mut().copy_from_slice(content);
        memory
    }

    fn address(&mut self) -> Parameter {
        Word(self.content_mut().as_mut_ptr() as u64)
    }

    fn bytes(&self) -> Parameter {
        Word(self.size as u64)
    }

    fn content(&self) -> &[u8] {
        &self.bytes[self.begin..self.begin + self.size]
    }

    fn content_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.begin + self.size]
    }

    fn guards_are_whole(&self) -> bool {
        let (before, rest) = self.bytes.split_at(self.begin);
        before.iter().chain(&rest[self.size..]).all(|byte| *byte == self.guard)
    }
}

/// The sizes around `size` at which heads, tails and whole vectors come and go.
fn around(size: usize) -> impl Iterator<Item = usize> {
    size - 17..=size + 17
}

/// The words of a seed, with a state that is advanced, not computed from a place, and in halves of
/// 32 bits.
struct Generator(u64);

impl Generator {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let (mut low, mut high) = (self.0 & 0xFFFF_FFFF, self.0 >> 32);
        for _ in 0..2 {
            low ^= high;
            let product = low * 0xB093_22E3;
            high = (high * 0xB093_22E3).wrapping_add(low * 0xDABA_0B6E);
            high = high.wrapping_add(product >> 32) & 0xFFFF_FFFF;
            low = product & 0xFFFF_FFFF;
        }
        high << 32 | (low ^ high)
    }
}

fn pattern(size: usize, seed: u64) -> Vec<u8> {
    let mut generator = Generator(seed);
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        bytes.extend(generator.next().to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

fn copies_whole(kernel: &str, shape: (u32, u32), content: &[u8], alignments: (usize, usize)) {
    let mut source = Memory::holding(content, alignments.0);
    let mut target = Memory::empty(content.len(), alignments.1);
    run(kernel, shape, &[target.address(), source.address(), target.bytes()]);
    let case = || format!("{kernel} {} bytes, {shape:?}, {alignments:?}", content.len());
    assert!(target.content() == content, "{}", case());
    assert!(target.guards_are_whole() && source.guards_are_whole(), "{}", case());
    assert!(source.content() == content, "{}", case());
}

fn every_alignment() -> impl Iterator<Item = (usize, usize)> {
    (0..16).flat_map(|source| (0..16).map(move |target| (source, target)))
}

fn copies_all_sizes(kernel: &str) {
    let content = pattern(HUGE_PAGE + 17, SEED);
    for size in (0..=300).chain(around(PAGE)) {
        for alignments in every_alignment() {
            for shape in [SHAPES[0], SHAPES[1]] {
                copies_whole(kernel, shape, &content[..size], alignments);
            }
        }
    }
    for size in around(HUGE_PAGE) {
        for source in 0..16 {
            for target in 0..16 {
                let shape = SHAPES[1 + (source + target) % 2];
                copies_whole(kernel, shape, &content[..size], (source, target));
            }
        }
    }
}

#[test]
fn copying_by_read_moves_every_byte_and_no_other() {
    copies_all_sizes("copy_by_read");
}

#[test]
fn copying_by_write_moves_every_byte_and_no_other() {
    copies_all_sizes("copy_by_write");
}

/// Sizes, alignments and shapes for what has one piece of memory.
fn each_memory(mut body: impl FnMut(usize, usize, (u32, u32))) {
    for alignment in 0..16 {
        for size in (0..=300).chain(around(PAGE)) {
            body(size, alignment, SHAPES[0]);
            body(size, alignment, SHAPES[1]);
        }
    }
    for size in around(HUGE_PAGE) {
        body(size, size % 16, SHAPES[2]);
        body(size, size / 16 % 16, SHAPES[1]);
    }
}

#[test]
fn a_checksum_is_that_of_all_words() {
    let content = pattern(HUGE_PAGE + 17, SEED);
    each_memory(|size, alignment, shape| {
        let mut expected = 0_u64;
        for (index, bytes) in (0..).zip(content[..size].chunks(8)) {
            let mut word = STEP.wrapping_mul(index).to_le_bytes();
            word[bytes.len()..].fill(0);
            for (byte, loaded) in word.iter_mut().zip(bytes) {
                *byte ^= loaded;
            }
            expected = expected.wrapping_add(u64::from_le_bytes(word));
        }
        let mut source = Memory::holding(&content[..size], alignment);
        let checksum = AtomicU64::new(5);
        let result = Word(checksum.as_ptr() as u64);
        run("read_only", shape, &[source.address(), source.bytes(), result]);
        let found = checksum.into_inner();
        assert_eq!(found, expected.wrapping_add(5), "{size} bytes at {alignment}, {shape:?}");
    });
}

fn writes_everywhere(kernel: &str, expected: &[u8], flip: Option<u64>) {
    each_memory(|size, alignment, shape| {
        let mut target = Memory::empty(size, alignment);
        let mut parameters = vec![target.address(), target.bytes(), Word(SEED)];
        parameters.extend(flip.map(Word));
        run(kernel, shape, &parameters);
        assert!(target.content() == &expected[..size], "{size} bytes at {alignment}, {shape:?}");
        assert!(target.guards_are_whole(), "{size} bytes at {alignment}, {shape:?}");
    });
}

#[test]
fn what_is_written_is_the_pattern() {
    // As in `src/transport/pattern.rs`.
    let mut known = 5_397_241_335_645_105_076_u64.to_le_bytes().to_vec();
    known.extend(10_036_195_605_256_929_896_u64.to_le_bytes());
    assert_eq!(pattern(16, 1_234_567), known);
    let expected = pattern(HUGE_PAGE + 17, SEED);
    writes_everywhere("write_only", &expected, None);
    writes_everywhere("fill", &expected, Some(0));
}

#[test]
fn poison_is_wrong_in_every_byte() {
    let expected: Vec<u8> = pattern(HUGE_PAGE + 17, SEED).iter().map(|byte| !byte).collect();
    writes_everywhere("fill", &expected, Some(u64::MAX));
}

#[test]
fn every_byte_of_a_word_is_flipped_by_its_own_bits() {
    let flip = 0x0807_0605_0403_0201_u64;
    let mut expected = pattern(HUGE_PAGE + 17, SEED);
    for (byte, flip) in expected.iter_mut().zip(flip.to_le_bytes().iter().cycle()) {
        *byte ^= flip;
    }
    writes_everywhere("fill", &expected, Some(flip));
}

/// The number of wrong bytes, and the offset of the first.
fn compared(found: &mut Memory, shape: (u32, u32)) -> (u64, u64) {
    let mut result = [0, u64::MAX];
    let address = Word(result.as_mut_ptr() as u64);
    run("compare", shape, &[found.address(), found.bytes(), Word(SEED), address]);
    (result[0], result[1])
}

#[test]
fn what_is_right_compares_equal() {
    let expected = pattern(HUGE_PAGE + 17, SEED);
    each_memory(|size, alignment, shape| {
        let mut found = Memory::holding(&expected[..size], alignment);
        let wrong = compared(&mut found, shape);
        assert_eq!(wrong, (0, u64::MAX), "{size} bytes at {alignment}, {shape:?}");
    });
}

#[test]
fn any_single_wrong_byte_is_found_where_it_lies() {
    let expected = pattern(1003, SEED);
    for alignment in 0..16 {
        let mut found = Memory::holding(&expected, alignment);
        for place in 0..expected.len() {
            let wrong_bit = 1 << (place / 8 % 8);
            found.content_mut()[place] ^= wrong_bit;
            for shape in [SHAPES[0], SHAPES[1]] {
                let wrong = compared(&mut found, shape);
                assert_eq!(wrong, (1, place as u64), "at {alignment}, {shape:?}");
            }
            found.content_mut()[place] ^= wrong_bit;
        }
    }
}

#[test]
fn wrong_bytes_are_counted_by_all_blocks_together() {
    let size = 3 * HUGE_PAGE + 5;
    let content: Vec<u8> = pattern(size, SEED).iter().map(|byte| !byte).collect();
    for shape in SHAPES {
        let mut found = Memory::holding(&content, 3);
        assert_eq!(compared(&mut found, shape), (size as u64, 0), "{shape:?}");
        // Two right bytes at the beginning, one amid a word.
        for place in [0, 1, HUGE_PAGE + 3] {
            found.content_mut()[place] = !content[place];
        }
        assert_eq!(compared(&mut found, shape), (size as u64 - 3, 2), "{shape:?}");
    }
}

#[test]
fn every_block_of_a_large_grid_runs_once() {
    let content = pattern(64 << 20, SEED);
    copies_whole("copy_by_read", SHAPES[2], &content, (0, 0));
    copies_whole("copy_by_write", SHAPES[2], &content, (1, 5));
    let mut found = Memory::holding(&content, 8);
    found.content_mut()[40 << 20] ^= 1;
    assert_eq!(compared(&mut found, SHAPES[2]), (1, 40 << 20));
}

#[test]
fn further_dimensions_do_the_same_again() {
    let mut source = Memory::holding(&1_u64.to_le_bytes(), 0);
    let checksum = AtomicU64::new(0);
    let result = Word(checksum.as_ptr() as u64);
    let mut launch = launch("read_only", (2, 4), &[source.address(), source.bytes(), result]);
    launch.grid = [2, 3, 5];
    launch.block = [4, 1, 2];
    // SAFETY: the parameters are addresses of locals, and their sizes.
    unsafe { launch.run(&|_| unreachable!("only `chase` asks")) };
    assert_eq!(checksum.into_inner(), 30);
}

/// A list of `hops` elements of 64 bytes in one cycle, and the offsets in the order of the chase.
fn cycle(elements: u64) -> (Vec<u64>, Vec<u64>) {
    let mut order: Vec<u64> = (0..elements).map(|element| 64 * element).collect();
    let mut generator = Generator(SEED);
    for place in (1..order.len()).rev() {
        order.swap(place, usize::try_from(generator.next() % (place as u64 + 1)).unwrap());
    }
    let mut list = vec![u64::MAX; order.len() * 8];
    for (here, next) in order.iter().zip(order.iter().cycle().skip(1)) {
        list[usize::try_from(*here / 8).unwrap()] = *next;
    }
    (list, order)
}

/// Runs `chase` from `order[0]`: the result, and the cycles.
fn chased(
    list: &[u64],
    begin: u64,
    hops: u64,
    hop_ns: &(dyn Fn(u64) -> f64 + Sync),
) -> ([u64; 3], Vec<u32>) {
    let mut cycles = vec![0; usize::try_from(hops).unwrap()];
    let mut result = [0; 3];
    let words = [
        list.as_ptr() as u64,
        begin,
        hops,
        cycles.as_mut_ptr() as u64,
        result.as_mut_ptr() as u64,
        list.len() as u64 * 8 - 8,
    ];
    let launch = launch("chase", (1, 1), &words.map(Word));
    // SAFETY: the parameters are addresses of locals, whose sizes are those of the hops.
    unsafe { launch.run(hop_ns) };
    (result, cycles)
}

#[test]
fn a_chase_visits_the_list_in_its_order_and_takes_the_latency_of_each_load() {
    let (list, order) = cycle(1024);
    let base = list.as_ptr() as u64;
    let latency_ns =
        |address: u64| f64::from(u32::try_from((address - base) / 64).unwrap()) + 500.0;
    let (result, cycles) = chased(&list, order[0], 700, &latency_ns);
    let expected: Vec<u64> = order[..700].iter().map(|offset| offset / 64 + 500).collect();
    assert!(cycles.iter().copied().map(u64::from).eq(expected.iter().copied()));
    let total = expected.iter().sum();
    assert_eq!(result, [order[700], total, total]);
}

#[test]
fn fractions_of_a_cycle_add_up_over_a_chase() {
    let (list, order) = cycle(64);
    let (result, cycles) = chased(&list, order[0], 1000, &|_| 571.3);
    assert_eq!(result, [order[1000 % 64], 571_300, 571_300]);
    assert!(cycles.iter().all(|cycles| [571, 572].contains(cycles)));
}

#[test]
fn a_load_too_long_for_its_counter_is_the_longest() {
    let (list, order) = cycle(2);
    let (result, cycles) = chased(&list, order[0], 1, &|_| 5e9);
    assert_eq!((cycles[0], result[1]), (u32::MAX, 5_000_000_000));
}

#[test]
fn a_wrong_pointer_leads_to_a_wrong_place_in_the_list() {
    let (mut list, order) = cycle(64);
    list[usize::try_from(order[0] / 8).unwrap()] = u64::MAX;
    let (result, _) = chased(&list, order[0], 2, &|_| 1.0);
    // All bits of the mask: the last word of the list, which no element of the cycle uses.
    assert_eq!(result[0], u64::MAX);
}

#[test]
fn a_chase_of_no_hops_stays_where_it_is() {
    assert_eq!(chased(&[64, 0], 0, 0, &|_| 1.0), ([0, 0, 0], vec![]));
}

/// What `hold` wrote to `timed_out`, and how long it took.
fn held(flag: &AtomicU32, ticket: u32, timeout: Duration) -> (u32, Duration) {
    let timed_out = AtomicU32::new(0);
    let begin = Instant::now();
    let parameters = [
        Word(flag.as_ptr() as u64),
        Half(ticket),
        Word(u64::try_from(timeout.as_nanos()).unwrap()),
        Word(timed_out.as_ptr() as u64),
    ];
    run("hold", (1, 1), &parameters);
    (timed_out.into_inner(), begin.elapsed())
}

#[test]
fn a_hold_lasts_until_the_flag_has_reached_the_ticket() {
    let flag = AtomicU32::new(6);
    let delay = Duration::from_millis(30);
    std::thread::scope(|scope| {
        let begin = Instant::now();
        scope.spawn(|| {
            std::thread::sleep(delay);
            flag.store(7, Ordering::Release);
        });
        let (timed_out, _) = held(&flag, 7, Duration::from_secs(60));
        assert_eq!(timed_out, 0);
        assert!(begin.elapsed() >= delay);
    });
}

#[test]
fn a_hold_whose_ticket_is_reached_does_not_wait() {
    for (flag, ticket) in [(7, 7), (8, 7), (3, u32::MAX - 3), (i32::MAX as u32, 0)] {
        let (timed_out, _) = held(&AtomicU32::new(flag), ticket, Duration::ZERO);
        assert_eq!(timed_out, 0, "{flag} {ticket}");
    }
}

#[test]
fn a_hold_in_vain_ends_after_its_time_and_says_so() {
    let timeout = Duration::from_millis(20);
    for (flag, ticket) in [(6, 7), (u32::MAX - 3, 3), (0, i32::MAX as u32)] {
        let (timed_out, lasted) = held(&AtomicU32::new(flag), ticket, timeout);
        assert_eq!(timed_out, 1, "{flag} {ticket}");
        assert!(lasted >= timeout);
    }
}

#[test]
fn an_effect_is_what_the_parameters_say() {
    let words = |count| (1..=count).map(Word).collect::<Vec<_>>();
    let effect = |name, count| launch(name, SHAPES[0], &words(count)).effect();
    assert_eq!(effect("copy_by_read", 3), Effect::Copy { target: 1, source: 2, bytes: 3 });
    assert_eq!(effect("copy_by_write", 3), Effect::Copy { target: 1, source: 2, bytes: 3 });
    assert_eq!(effect("read_only", 3), Effect::Read { source: 1, bytes: 2, result: 3 });
    let pattern =
        |flip| Effect::Write { target: 1, bytes: 2, what: Written::Pattern { seed: 3, flip } };
    assert_eq!(effect("write_only", 3), pattern(0));
    assert_eq!(effect("fill", 4), pattern(4));
    let expected = Expected::Pattern { seed: 3 };
    let compared = Effect::Compare { found: 1, bytes: 2, expected, result: 4 };
    assert_eq!(effect("compare", 4), compared);
    let values = Values { data_type: 8, reduction: 2, ranks: 4, seed: 3 };
    let parameters = [Word(1), Word(5), Word(3), Half(8), Half(2), Word(3 << 32 | 4)];
    let given = launch("give", SHAPES[0], &parameters).effect();
    let what = Written::Given { values, rank: 3 };
    assert_eq!(given, Effect::Write { target: 1, bytes: 40, what });
    let parameters = [Word(1), Word(5), Word(3), Word(8 << 32 | 2), Word(7 << 32 | 4), Word(6)];
    let compared = launch("compare_reduced", SHAPES[0], &parameters).effect();
    let expected = Expected::Reduced { values, tolerance: 7 };
    assert_eq!(compared, Effect::Compare { found: 1, bytes: 40, expected, result: 6 });
    assert_eq!(effect("chase", 6), Effect::Chase { list: 1, hops: 3, cycles: 4, result: 5 });
    let hold = launch("hold", SHAPES[0], &[Word(1), Half(2), Word(3), Word(4)]);
    assert_eq!(hold.effect(), Effect::Hold { flag: 1, ticket: 2, timed_out: 4 });
}

#[test]
#[should_panic(expected = "parameters of")]
fn a_launch_with_other_parameters_does_not_run() {
    run("hold", SHAPES[0], &[Word(0), Word(0), Word(0), Word(0)]);
}

fn names(ptx: &str) -> Vec<&str> {
    module(ptx).unwrap().iter().map(|kernel| kernel.name).collect()
}

#[test]
fn the_modules_have_the_kernels_of_their_sources() {
    let copy = include_str!("../../../kernels/copy.ptx");
    let pattern = include_str!("../../../kernels/pattern.ptx");
    assert_eq!(names(copy), ["copy_by_read", "copy_by_write", "read_only", "write_only"]);
    assert_eq!(names(pattern), ["fill", "compare"]);
    assert_eq!(names(include_str!("../../../kernels/hold.ptx")), ["hold"]);
    assert_eq!(names(include_str!("../../../kernels/chase.ptx")), ["chase"]);
}

#[test]
fn what_is_no_ptx_is_refused() {
    let elf = "\u{7f}ELF .visible .entry fill(";
    let cut_off = ".version 7.0\n.target sm_70\n.visible .entry fill(\n.param .u64 fill_param_0,";
    for text in ["", "\n", "// .version 7.0\n", "__global__ void fill() {}", elf, cut_off] {
        assert_eq!(module(text).unwrap_err(), BadModule::NotPtx, "{text}");
    }
}

#[test]
fn foreign_kernels_are_refused() {
    let module_of = |declaration: &str| {
        module(&format!("// a heading\n.version 7.0\n.target sm_70\n{declaration}\n{{ ret; }}\n"))
    };
    let hold = ".param .u64 a, .param .u32 b, .param .u64 c, .param .u64 d";
    assert_eq!(module_of(&format!(".visible .entry hold({hold})")).unwrap()[0].name, "hold");
    for declaration in [
        format!(".visible .entry held({hold})"),
        ".visible .entry hold()".to_owned(),
        format!(".visible .entry hold({hold}, .param .u64 e)"),
        format!(".visible .entry hold({})", hold.replace("u32", "u64")),
        format!(".visible .entry hold({})", hold.replace(".u32", ".f32")),
        format!(".visible .entry hold({hold})\n{{ ret; }}\n.visible .entry other({hold})"),
    ] {
        assert_eq!(module_of(&declaration).unwrap_err(), BadModule::Unknown, "{declaration}");
    }
    assert!(module_of("// .entry other()").unwrap().is_empty());
}
