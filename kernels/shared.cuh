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

// Output number `index` of SplitMix64 for `seed`: word `index` of the pattern (Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
__device__ inline uint64_t pattern_word(uint64_t seed, uint64_t index) {
    const uint64_t state = seed + (index + 1) * 0x9E3779B97F4A7C15;
    uint64_t mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
    return mixed ^ (mixed >> 31);
}

__device__ inline uint8_t pattern_byte(uint64_t seed, uint64_t offset) {
    return static_cast<uint8_t>(pattern_word(seed, offset / 8) >> (8 * (offset % 8)));
}

// The 16 bytes of the pattern at `offset`. `on_word`: the offset is that of a word.
template <bool on_word>
__device__ Vector pattern_vector(uint64_t seed, uint64_t offset) {
    const uint64_t index = offset / 8;
    const uint64_t first = pattern_word(seed, index);
    const uint64_t second = pattern_word(seed, index + 1);
    if (on_word) {
        return {first, second};
    }
    const uint64_t third = pattern_word(seed, index + 2);
    const uint64_t bits = 8 * (offset % 8);
    return {first >> bits | second << (64 - bits), second >> bits | third << (64 - bits)};
}

// `flip` begins with the byte that the first vector needs.
template <bool on_word>
__device__ void store_pattern_vectors(uint8_t* target, const Split& split, uint64_t seed,
                                      uint64_t flip) {
    const uint64_t head = split.head;
    for_each_batch(split.vectors, [=](auto batch) {
#pragma unroll
        for (int place = 0; place < DEPTH; place++) {
            if (batch.has(place)) {
                const uint64_t offset = head + 16 * batch.at(place);
                Vector value = pattern_vector<on_word>(seed, offset);
                value.low ^= flip;
                value.high ^= flip;
                store_vector(target + offset, value);
            }
        }
    });
}

// Stores the pattern of `seed`, each word xor `flip`.
__device__ inline void store_pattern(uint8_t* target, uint64_t bytes, uint64_t seed,
                                     uint64_t flip) {
    const Split split(target, bytes);
    const uint64_t bits = 8 * (split.head % 8);
    if (bits == 0) {
        store_pattern_vectors<true>(target, split, seed, flip);
    } else {
        const uint64_t rotated = flip >> bits | flip << (64 - bits);
        store_pattern_vectors<false>(target, split, seed, rotated);
    }
    for_each_edge(split, [=](uint64_t offset) {
        const uint64_t byte_flip = flip >> (8 * (offset % 8));
        target[offset] = static_cast<uint8_t>(pattern_byte(seed, offset) ^ byte_flip);
    });
}
