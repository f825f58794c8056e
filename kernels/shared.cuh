// What the kernels share: how a launch goes through memory, and the pattern.
//
// The same sources are compiled for GPUs by NVRTC and for CPUs by a C++17 compiler. There a block
// is one call of the kernel that goes through all of its threads, so a variable outside of
// `THREADS` belongs to a thread of a GPU, and to a whole block of a CPU. Kernels use one dimension.
#pragma once

#ifdef __CUDACC__

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;

// The blocks share `count` tiles.
#define TILES(tile, count) \
    for (uint64_t tile = blockIdx.x; tile < (count); tile += gridDim.x)

// Once for each thread of the block.
#define THREADS(lane) for (uint32_t lane = threadIdx.x, left = 1; left; left = 0)

__device__ inline void atomic_add(uint64_t* sum, uint64_t value) {
    atomicAdd(sum, value);
}

__device__ inline void atomic_min(uint64_t* least, uint64_t value) {
    atomicMin(least, value);
}

// Adds what all threads of the launch have. A warp adds up first: one atomic operation of it
// instead of 32 that wait for each other. All threads must call it.
__device__ inline void add_from_all(uint64_t* sum, uint64_t value) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t behind = blockDim.x - (threadIdx.x - lane);
    const uint32_t width = behind < 32 ? behind : 32;
    const uint32_t mask = 0xFFFFFFFF >> (32 - width);
    for (uint32_t step = 16; step > 0; step /= 2) {
        const uint64_t other = __shfl_down_sync(mask, value, step);
        value += lane + step < width ? other : 0;
    }
    if (lane == 0 && value != 0) {
        atomic_add(sum, value);
    }
}

__device__ inline uint64_t global_timer_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__device__ inline uint64_t clock_cycles() {
    return clock64();
}

__device__ inline void short_sleep() {
    __nanosleep(100);
}

// Volatile: relaxed and of system scope (PTX ISA, "Volatile operation"), so never from L1.
__device__ inline uint64_t load_next(const uint8_t* address) {
    return *reinterpret_cast<const volatile uint64_t*>(address);
}

#endif

// What one access moves.
struct alignas(16) Vector {
    uint64_t low;
    uint64_t high;
};

// Vectors that a thread has in flight, where nothing else is said.
enum { DEPTH = 8 };

// Memory as 16-byte vectors on 16-byte boundaries, with the bytes before and behind them.
struct Split {
    uint64_t head;
    uint64_t vectors;
    uint64_t tail;

    __device__ Split(const uint8_t* memory, uint64_t bytes) {
        const uint64_t before = -reinterpret_cast<uint64_t>(memory) % 16;
        head = before < bytes ? before : bytes;
        vectors = (bytes - head) / 16;
        tail = (bytes - head) % 16;
    }
};

// The vectors that a thread works on at once. `whole`: all of them exist.
template <bool whole>
struct Batch {
    uint64_t first;
    uint64_t stride;
    uint64_t end;

    __device__ uint64_t at(int place) const {
        return first + place * stride;
    }

    __device__ bool has(int place) const {
        return whole || at(place) < end;
    }
};

// Calls `body` with batches that hold each of `vectors` vectors once. As long as there is a whole
// batch for every thread, a block has contiguous tiles; the rest is spread over all blocks, so
// that a small transfer has all of the GPU too.
template <int depth = DEPTH, typename Body>
__device__ void for_each_batch(uint64_t vectors, Body body) {
    const uint64_t threads = blockDim.x;
    const uint64_t all_threads = threads * gridDim.x;
    const uint64_t tiles = vectors / (all_threads * depth) * gridDim.x;
    TILES(tile, tiles) {
        THREADS(lane) {
            body(Batch<true>{tile * threads * depth + lane, threads, vectors});
        }
    }
    const uint64_t rest = tiles * threads * depth + blockIdx.x * threads;
    THREADS(lane) {
        body(Batch<false>{rest + lane, all_threads, vectors});
    }
}

// Calls `body` with the offset of each byte outside of the vectors. The last block does it: it
// has the least of the rest above.
template <typename Body>
__device__ void for_each_edge(const Split& split, Body body) {
    if (blockIdx.x != gridDim.x - 1) {
        return;
    }
    const uint64_t count = split.head + split.tail;
    const uint32_t threads = blockDim.x;
    THREADS(lane) {
        for (uint64_t edge = lane; edge < count; edge += threads) {
            body(edge < split.head ? edge : edge + 16 * split.vectors);
        }
    }
}

__device__ inline Vector load_vector(const uint8_t* source) {
    return *reinterpret_cast<const Vector*>(source);
}

__device__ inline void store_vector(uint8_t* target, Vector value) {
    *reinterpret_cast<Vector*>(target) = value;
}

// By how much the state of the pattern, and the key of the checksum, grow from word to word: 2^64
// divided by the golden ratio (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014).
enum : uint64_t { STEP = 0x9E3779B97F4A7C15 };

// Of word `index` of the pattern.
__device__ inline uint64_t pattern_state(uint64_t seed, uint64_t index) {
    return seed + (index + 1) * STEP;
}

// The word of a state, by Doug Lea's mixing function (`RandomSupport.mixLea64` of OpenJDK 17;
// Steele and Vigna, "LXM: better splittable pseudorandom number generators (and almost as fast)",
// OOPSLA 2021). A shift by 32 is none for a GPU: its registers have 32 bits.
__device__ inline uint64_t mixed(uint64_t state) {
    state = (state ^ (state >> 32)) * 0xDABA0B6EB09322E3;
    state = (state ^ (state >> 32)) * 0xDABA0B6EB09322E3;
    return state ^ (state >> 32);
}

__device__ inline uint64_t pattern_word(uint64_t seed, uint64_t index) {
    return mixed(pattern_state(seed, index));
}

__device__ inline uint8_t pattern_byte(uint64_t seed, uint64_t offset) {
    return static_cast<uint8_t>(pattern_word(seed, offset / 8) >> (8 * (offset % 8)));
}

// What a word that is summed is xored with; of a part of a word, the same part. So the sum of the
// parts is that of the whole, and what is not there adds nothing.
__device__ inline uint64_t key(uint64_t index) {
    return index * STEP;
}

__device__ inline uint32_t low_half(uint64_t word) {
    return static_cast<uint32_t>(word);
}

__device__ inline uint32_t high_half(uint64_t word) {
    return static_cast<uint32_t>(word >> 32);
}

__device__ inline uint64_t joined(uint32_t low, uint32_t high) {
    return uint64_t(high) << 32 | low;
}

// Where vectors begin in a word.
enum class Part { BEGINNING, LOW_HALF, HIGH_HALF };

// How vectors lie to words. With a constant for the half of the word in which they begin, moving
// bytes is one shift for each 32 bits.
template <Part part>
struct Phase {
    // Of the words that lie before the first vector.
    uint64_t words;
    // And further: of the half of the word in which it begins, the bits that lie before it.
    uint32_t bits;

    // The vector with this state of the word in which it begins.
    __device__ Vector pattern(uint64_t state) const {
        const uint64_t first = mixed(state);
        const uint64_t second = mixed(state + STEP);
        if (part == Part::BEGINNING) {
            return {first, second};
        }
        const uint64_t third = mixed(state + 2 * STEP);
        const uint32_t halves[] = {low_half(first),   high_half(first), low_half(second),
                                   high_half(second), low_half(third),  high_half(third)};
        const uint32_t* from = halves + (part == Part::HIGH_HALF);
        const auto shifted = [=](int place) {
            return static_cast<uint32_t>(joined(from[place], from[place + 1]) >> bits);
        };
        return {joined(shifted(0), shifted(1)), joined(shifted(2), shifted(3))};
    }

    // What 8 loaded bytes add to the checksum; `key` is that of the word in which they begin. They
    // are the upper bytes of this word and, below those once they are rotated, the lower bytes of
    // the next one.
    __device__ uint64_t summand(uint64_t loaded, uint64_t key) const {
        if (part == Part::BEGINNING) {
            return loaded ^ key;
        }
        const bool is_high = part == Part::HIGH_HALF;
        const uint32_t low = is_high ? high_half(loaded) : low_half(loaded);
        const uint32_t high = is_high ? low_half(loaded) : high_half(loaded);
        const uint32_t rotated_low = static_cast<uint32_t>(joined(high, low) >> (32 - bits));
        const uint32_t rotated_high = static_cast<uint32_t>(joined(low, high) >> (32 - bits));
        const uint64_t next = key + STEP;
        const uint32_t mask = (uint32_t(1) << bits) - 1;
        const uint32_t key_low =
            is_high ? low_half(next) : (low_half(key) & ~mask) | (low_half(next) & mask);
        const uint32_t key_high =
            is_high ? (high_half(key) & ~mask) | (high_half(next) & mask) : high_half(key);
        return joined(rotated_low ^ key_low, rotated_high ^ key_high);
    }
};

// Calls `body` with the phase of vectors of which the first lies behind `head` bytes.
template <typename Body>
__device__ void with_phase(uint64_t head, Body body) {
    const uint32_t bits = 8 * (head % 4);
    if (head % 8 == 0) {
        body(Phase<Part::BEGINNING>{head / 8, bits});
    } else if (head % 8 < 4) {
        body(Phase<Part::LOW_HALF>{head / 8, bits});
    } else {
        body(Phase<Part::HIGH_HALF>{head / 8, bits});
    }
}

// Stores the pattern of `seed`, each word xor `flip`.
__device__ inline void store_pattern(uint8_t* target, uint64_t bytes, uint64_t seed,
                                     uint64_t flip) {
    const Split split(target, bytes);
    const uint64_t bits = 8 * (split.head % 8);
    // Begins with the byte that the first vector needs.
    const uint64_t rotated = flip >> bits | flip << (-bits % 64);
    with_phase(split.head, [=](auto phase) {
        for_each_batch(split.vectors, [=](auto batch) {
            uint64_t state = pattern_state(seed, phase.words + 2 * batch.first);
#pragma unroll
            for (int place = 0; place < DEPTH; place++) {
                if (batch.has(place)) {
                    Vector value = phase.pattern(state);
                    value.low ^= rotated;
                    value.high ^= rotated;
                    store_vector(target + split.head + 16 * batch.at(place), value);
                }
                state += 2 * batch.stride * STEP;
            }
        });
    });
    for_each_edge(split, [=](uint64_t offset) {
        const uint64_t byte_flip = flip >> (8 * (offset % 8));
        target[offset] = static_cast<uint8_t>(pattern_byte(seed, offset) ^ byte_flip);
    });
}
