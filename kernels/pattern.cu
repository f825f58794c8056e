// What a buffer must hold, written and compared where it lies.

#include "shared.cuh"

// Stores the pattern of `seed`, each word xor `flip`: 0 for the pattern, all ones for what is
// wrong in every byte.
extern "C" __global__ void fill(uint8_t* target, uint64_t bytes, uint64_t seed, uint64_t flip) {
    store_pattern(target, bytes, seed, flip);
}

// The wrong bytes of a thread, or of a block of a CPU.
struct Wrong {
    uint64_t count;
    uint64_t first;

    // `difference`: found xor expected of the 8 bytes at `offset`.
    __device__ void note(uint64_t difference, uint64_t offset) {
        if (difference == 0) {
            return;
        }
        // One bit for each byte that differs.
        uint64_t bytes = difference | difference >> 4;
        bytes |= bytes >> 2;
        bytes |= bytes >> 1;
        bytes &= 0x0101010101010101;
        count += bytes * 0x0101010101010101 >> 56;
        const uint64_t lowest = offset + (__ffsll(bytes) - 1) / 8;
        first = lowest < first ? lowest : first;
    }
};

// Compares with the pattern of `seed`: adds the number of wrong bytes to `result[0]`, and lowers
// `result[1]` to the offset of the first one. `result` is in the GPU's own memory.
extern "C" __global__ void compare(const uint8_t* found, uint64_t bytes, uint64_t seed,
                                   uint64_t* result) {
    const Split split(found, bytes);
    Wrong wrong = {0, ~uint64_t(0)};
    with_phase(split.head, [&](auto phase) {
        for_each_batch(split.vectors, [&](auto batch) {
            Vector values[DEPTH] = {};
#pragma unroll
            for (int place = 0; place < DEPTH; place++) {
                if (batch.has(place)) {
                    values[place] = load_vector(found + split.head + 16 * batch.at(place));
                }
            }
            uint64_t state = pattern_state(seed, phase.words + 2 * batch.first);
#pragma unroll
            for (int place = 0; place < DEPTH; place++) {
                if (batch.has(place)) {
                    const uint64_t offset = split.head + 16 * batch.at(place);
                    const Vector expected = phase.pattern(state);
                    wrong.note(values[place].low ^ expected.low, offset);
                    wrong.note(values[place].high ^ expected.high, offset + 8);
                }
                state += 2 * batch.stride * STEP;
            }
        });
    });
    for_each_edge(split, [&](uint64_t offset) {
        wrong.note(found[offset] ^ pattern_byte(seed, offset), offset);
    });
    if (wrong.count != 0) {
        atomic_add(&result[0], wrong.count);
        atomic_min(&result[1], wrong.first);
    }
}
