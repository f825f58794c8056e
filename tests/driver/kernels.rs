//! g2g's kernels, against formulas worked out here or in `transport::pattern`.

use strum::VariantArray as _;

use super::*;

on_both_machines! {
    one GPU: [
        kernels_copy_their_bytes_and_no_others
        kernels_write_the_pattern_and_its_opposite
        a_comparison_finds_every_wrong_byte
        loads_alone_add_up_to_the_checksum
        a_chase_follows_its_list
        what_is_given_and_what_comes_out_is_the_same_for_gpus
    ]
    two GPUs: [
        kernels_are_launched_in_streams_of_their_own_context
    ]
}

fn kernels_copy_their_bytes_and_no_others(gpus: &[Context]) {
    let mut gpu = Gpu::new(&gpus[0]);
    let (near, far) = (buffer(&gpus[0], 3 << 20), buffer(&gpus[0], 3 << 20));
    let data = patterned(2, 3 << 20);
    gpu.write(near.all(), &data);
    let aligned = [(0, 0), (16, 32), (1, 1), (15, 15)];
    let skewed = [(0, 1), (7, 3), (8, 4), (13, 2)];
    for (target, source) in aligned.into_iter().chain(skewed) {
        for size in [0, 1, 15, 16, 33, 4095, (2 << 20) + 17] {
            let (to, from) = (part(&far, target, size), part(&near, source, size));
            gpu.stream.set(far.all(), 0xEE).unwrap();
            gpu.kernels.copy_by_read(&gpu.stream, to, from, 1).unwrap();
            is_copied(&gpu.read(far.all()), target, &data, source, size);
            gpu.stream.set(far.all(), 0xEE).unwrap();
            gpu.kernels.copy_by_write(&gpu.stream, to, from, 7).unwrap();
            is_copied(&gpu.read(far.all()), target, &data, source, size);
        }
    }
}

fn kernels_write_the_pattern_and_its_opposite(gpus: &[Context]) {
    let mut gpu = Gpu::new(&gpus[0]);
    let memory = buffer(&gpus[0], 3 << 20);
    for (offset, size) in [(0, 1), (1, 7), (3, 4096), (8, 2 << 20), (5, (2 << 20) + 13)] {
        let target = part(&memory, offset, size);
        let mut data = patterned(offset, size);
        gpu.stream.set(memory.all(), 0xEE).unwrap();
        gpu.kernels.fill(&gpu.stream, target, offset).unwrap();
        is_copied(&gpu.read(memory.all()), offset, &data, 0, size);
        gpu.stream.set(memory.all(), 0xEE).unwrap();
        gpu.kernels.write_only(&gpu.stream, target, offset, 3).unwrap();
        is_copied(&gpu.read(memory.all()), offset, &data, 0, size);
        gpu.kernels.poison(&gpu.stream, target, offset).unwrap();
        pattern::poison(&mut data, offset);
        is_copied(&gpu.read(memory.all()), offset, &data, 0, size);
    }
}

fn a_comparison_finds_every_wrong_byte(gpus: &[Context]) {
    let mut gpu = Gpu::new(&gpus[0]);
    let (memory, result) = (buffer(&gpus[0], (1 << 20) + 64), buffer(&gpus[0], 16));
    for (offset, size) in [(0, 1 << 20), (3, (1 << 20) + 5), (1, 14)] {
        let found = part(&memory, offset, size);
        let data = patterned(5, size);
        gpu.kernels.fill(&gpu.stream, found, 5).unwrap();
        assert_eq!(compare(&mut gpu, found, &result), [0, u64::MAX]);
        for (count, wrong) in [(1, size - 1), (2, size / 2), (3, 0)] {
            let byte = !data[usize::try_from(wrong).unwrap()];
            gpu.stream.set(part(&memory, offset + wrong, 1), byte).unwrap();
            assert_eq!(compare(&mut gpu, found, &result), [count, wrong]);
        }
        gpu.kernels.poison(&gpu.stream, found, 5).unwrap();
        assert_eq!(compare(&mut gpu, found, &result), [size, 0]);
    }
}

/// How many bytes differ from the pattern of seed 5, and where the first is.
fn compare(gpu: &mut Gpu, found: Slice<'_>, result: &Buffer) -> Vec<u64> {
    gpu.write(result.all(), &[[0; 8], [0xFF; 8]].concat());
    gpu.kernels.compare(&gpu.stream, found, 5, result.all()).unwrap();
    words(&gpu.read(result.all()))
}

fn loads_alone_add_up_to_the_checksum(gpus: &[Context]) {
    let mut gpu = Gpu::new(&gpus[0]);
    let (memory, sum) = (buffer(&gpus[0], 3 << 20), buffer(&gpus[0], 8));
    for (offset, size) in [(0, 8), (0, 3), (5, 4097), (16, 1 << 20), (9, (2 << 20) + 21)] {
        let data = patterned(offset, size);
        gpu.write(part(&memory, offset, size), &data);
        gpu.stream.set(sum.all(), 0).unwrap();
        gpu.kernels.read_only(&gpu.stream, part(&memory, offset, size), sum.all(), 3).unwrap();
        // Each byte xor that of the key of its word.
        let mut expected = 0_u64;
        for (place, byte) in (0..).zip(data) {
            let (index, shift) = (place / 8, 8 * (place % 8));
            let key = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(index) >> shift & 0xFF;
            expected = expected.wrapping_add((u64::from(byte) ^ key) << shift);
        }
        assert_eq!(words(&gpu.read(sum.all())), [expected], "{size} bytes at {offset}");
    }
}

fn a_chase_follows_its_list(gpus: &[Context]) {
    const STEPS: u64 = 64;
    let mut gpu = Gpu::new(&gpus[0]);
    // Each place leads to the one 7 places on, 4 KiB apart; that visits all 64 in turn.
    let place = |step: u64| step * 7 % STEPS * 4096;
    let list = buffer(&gpus[0], STEPS * 4096);
    for step in 0..STEPS {
        let next = place(step + 1).to_le_bytes();
        gpu.write(part(&list, place(step), 8), &next);
    }
    let (cycles, result) = (buffer(&gpus[0], 100 * 4), buffer(&gpus[0], 24));
    let chase = Chase {
        list: list.all(),
        offset: Bytes::new(place(3)),
        cycles: cycles.all(),
        result: result.all(),
    };
    gpu.kernels.chase(&gpu.stream, chase).unwrap();
    let found = words(&gpu.read(result.all()));
    let cycles: Vec<u32> = gpu
        .read(cycles.all())
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect();
    assert_eq!(found[0], place(103));
    assert!(cycles.iter().all(|&cycles| cycles > 0), "{cycles:?}");
    assert!(found[1] >= cycles.iter().map(|&cycles| u64::from(cycles)).sum(), "{found:?}");
    assert!(found[2] > 0, "{found:?}");
}

fn what_is_given_and_what_comes_out_is_the_same_for_gpus(gpus: &[Context]) {
    const COUNT: u64 = 1000;
    let mut gpu = Gpu::new(&gpus[0]);
    let (memory, result) = (buffer(&gpus[0], 64 << 10), buffer(&gpus[0], 16));
    for &data_type in DataType::VARIANTS {
        let size = data_type.size().get();
        for (&reduction, ranks) in
            Reduction::VARIANTS.iter().flat_map(|op| [1, 2, 3, 8, 72, 511].map(|ranks| (op, ranks)))
        {
            let values = Values::new(data_type, reduction, ranks);
            let what = format!("{data_type:?} {reduction:?} {ranks}");
            let all = part(&memory, 0, COUNT * size);
            let bytes = |element: &dyn Fn(u64) -> u64| -> Vec<u8> {
                let length = usize::try_from(size).unwrap();
                let of = |index| element(index).to_le_bytes()[..length].to_vec();
                (0..COUNT).flat_map(of).collect()
            };
            for rank in [0, ranks / 2, ranks - 1] {
                gpu.kernels.give(&gpu.stream, all, values.reduced(9), rank).unwrap();
                assert!(gpu.read(all) == bytes(&|index| values.given(9, index, rank)), "{what}");
            }
            let expected = bytes(&|index| values.result(9, index));
            gpu.write(all, &expected);
            let compare = |gpu: &mut Gpu| {
                gpu.write(result.all(), &[[0; 8], [0xFF; 8]].concat());
                let reduced = values.reduced(9);
                gpu.kernels.compare_reduced(&gpu.stream, all, reduced, result.all()).unwrap();
                words(&gpu.read(result.all()))
            };
            assert_eq!(compare(&mut gpu), [0, u64::MAX], "{what}");
            for (count, wrong) in [(1, COUNT - 1), (2, 17)] {
                let last = usize::try_from((wrong + 1) * size - 1).unwrap();
                gpu.write(part(&memory, (wrong + 1) * size - 1, 1), &[!expected[last]]);
                assert_eq!(compare(&mut gpu), [count, wrong], "{what}");
            }
        }
    }
}

fn kernels_are_launched_in_streams_of_their_own_context(gpus: &[Context]) {
    let (gpu, other) = (Gpu::new(&gpus[0]), Gpu::new(&gpus[1]));
    let memory = buffer(&gpus[0], 1 << 20);
    let launch = || gpu.kernels.fill(&other.stream, memory.all(), 1);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(launch)).is_err());
}
