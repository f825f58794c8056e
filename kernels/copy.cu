// Moving data with the threads of a GPU: copies, loads alone, stores alone.
//
// Memory that may be another GPU's is accessed 16 bytes at a time, on 16-byte boundaries, whatever
// the alignment of the data; only what lies outside of those boundaries, byte by byte.

#include "shared.cuh"

// Loads 16 bytes in units that `source` is aligned to.
template <typename Unit>
__device__ Vector load_in(const uint8_t* source) {
    constexpr int half = 8 / sizeof(Unit);
    const Unit* units = reinterpret_cast<const Unit*>(source);
    Vector value = {0, 0};
#pragma unroll
    for (int place = 0; place < half; place++) {
        value.low |= uint64_t(units[place]) << (8 * sizeof(Unit) * place);
        value.high |= uint64_t(units[place + half]) << (8 * sizeof(Unit) * place);
    }
    return value;
}

template <>
__device__ inline Vector load_in<Vector>(const uint8_t* source) {
    return load_vector(source);
}

// Stores 16 bytes in units that `target` is aligned to.
template <typename Unit>
__device__ void store_in(uint8_t* target, Vector value) {
    constexpr int half = 8 / sizeof(Unit);
    Unit* units = reinterpret_cast<Unit*>(target);
#pragma unroll
    for (int place = 0; place < half; place++) {
        units[place] = static_cast<Unit>(value.low >> (8 * sizeof(Unit) * place));
        units[place + half] = static_cast<Unit>(value.high >> (8 * sizeof(Unit) * place));
    }
}

template <>
__device__ inline void store_in<Vector>(uint8_t* target, Vector value) {
    store_vector(target, value);
}

template <typename SourceUnit, typename TargetUnit>
__device__ void copy_vectors(uint8_t* target, const uint8_t* source, uint64_t vectors) {
    // Byte by byte, eight vectors take more registers than there are for a thread.
    constexpr bool in_bytes = sizeof(SourceUnit) == 1 || sizeof(TargetUnit) == 1;
    constexpr int depth = in_bytes ? DEPTH / 2 : DEPTH;
    for_each_batch<depth>(vectors, [=](auto batch) {
        Vector values[depth] = {};
#pragma unroll
        for (int place = 0; place < depth; place++) {
            if (batch.has(place)) {
                values[place] = load_in<SourceUnit>(source + 16 * batch.at(place));
            }
        }
#pragma unroll
        for (int place = 0; place < depth; place++) {
            if (batch.has(place)) {
                store_in<TargetUnit>(target + 16 * batch.at(place), values[place]);
            }
        }
    });
}

// Blocks of up to 512 threads, of which a multiprocessor holds two: no more than 64 registers.
#define BOUNDS __launch_bounds__(512, 2)

// `split`: of the side that has 16-byte accesses; the other has the widest that its alignment
// allows.
template <bool by_read>
__device__ void copy(uint8_t* target, const uint8_t* source, const Split& split) {
    uint8_t* const to = target + split.head;
    const uint8_t* const from = source + split.head;
    const uint64_t ends = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from);
    if (ends % 16 == 0) {
        copy_vectors<Vector, Vector>(to, from, split.vectors);
    } else if (ends % 4 == 0) {
        if (by_read) {
            copy_vectors<Vector, uint32_t>(to, from, split.vectors);
        } else {
            copy_vectors<uint32_t, Vector>(to, from, split.vectors);
        }
    } else if (by_read) {
        copy_vectors<Vector, uint8_t>(to, from, split.vectors);
    } else {
        copy_vectors<uint8_t, Vector>(to, from, split.vectors);
    }
    for_each_edge(split, [=](uint64_t offset) { target[offset] = source[offset]; });
}

// Copies; for a source on another GPU.
extern "C" __global__ BOUNDS void copy_by_read(uint8_t* target, const uint8_t* source,
                                               uint64_t bytes) {
    copy<true>(target, source, Split(source, bytes));
}

// Copies; for a target on another GPU.
extern "C" __global__ BOUNDS void copy_by_write(uint8_t* target, const uint8_t* source,
                                                uint64_t bytes) {
    copy<false>(target, source, Split(target, bytes));
}

// Loads everything and adds it to `*checksum`, in the GPU's own memory: the sum of word i xor its
// key, so that no load can be left out and the place of a word counts. Words are 64-bit,
// little-endian; of a last word that is not whole, only its bytes count, each with its own of the
// key. `checksum` of `src/transport/pattern.rs` says what this sum finds.
extern "C" __global__ BOUNDS void read_only(const uint8_t* source, uint64_t bytes,
                                            uint64_t* checksum) {
    const Split split(source, bytes);
    const uint8_t* const from = source + split.head;
    uint64_t sum = 0;
    with_phase(split.head, [&](auto phase) {
        for_each_batch(split.vectors, [&](auto batch) {
            Vector values[DEPTH] = {};
#pragma unroll
            for (int place = 0; place < DEPTH; place++) {
                if (batch.has(place)) {
                    values[place] = load_vector(from + 16 * batch.at(place));
                }
            }
            uint64_t first = key(phase.words + 2 * batch.first);
#pragma unroll
            for (int place = 0; place < DEPTH; place++) {
                const uint64_t both = phase.summand(values[place].low, first) +
                    phase.summand(values[place].high, first + STEP);
                sum += batch.has(place) ? both : 0;
                first += 2 * batch.stride * STEP;
            }
        });
    });
    for_each_edge(split, [&](uint64_t offset) {
        const uint64_t place = 8 * (offset % 8);
        sum += (source[offset] ^ (key(offset / 8) >> place & 0xFF)) << place;
    });
    add_from_all(checksum, sum);
}

// Stores the pattern of `seed`.
extern "C" __global__ BOUNDS void write_only(uint8_t* target, uint64_t bytes,
                                             uint64_t seed) {
    store_pattern(target, bytes, seed, 0);
}
