// What ranks give to a reduction, and what must come out: numbers of which every sum and product
// on the way is exact in their type, whatever the order. `src/transport/values.rs` has the same.

#include "shared.cuh"

// A type by its place in `DataType::ALL`.
struct Type {
    uint32_t size;
    // Of a float: bits of its significand without the first, and the bias of its exponent.
    uint32_t significand;
    uint32_t bias;
    // All whole numbers up to 2 to the power of this are exact.
    uint32_t exact;
    // So often 1 can be doubled.
    uint32_t doublings;
    bool is_signed;
};

__device__ inline Type type_of(uint32_t type) {
    switch (type) {
    case 0: return {1, 0, 0, 6, 6, true};
    case 1: return {1, 0, 0, 7, 7, false};
    case 2: return {4, 0, 0, 30, 30, true};
    case 3: return {4, 0, 0, 31, 31, false};
    case 4: return {8, 0, 0, 48, 62, true};
    case 5: return {8, 0, 0, 48, 62, false};
    case 6: return {2, 10, 15, 11, 15, true};
    case 7: return {4, 23, 127, 24, 60, true};
    case 8: return {8, 52, 1023, 48, 60, true};
    case 9: return {2, 7, 127, 8, 60, true};
    case 10: return {1, 3, 7, 4, 8, true};
    default: return {1, 2, 15, 3, 15, true};
    }
}

enum Reduction : uint32_t { SUM, PROD, MAX, MIN, AVG, MULSUM };

// The largest power of two that is not above `value`, as an exponent; of 0: 0.
__device__ inline uint32_t floor_log2(uint64_t value) {
    uint32_t log = 0;
    while (value > 1) {
        value >>= 1;
        log++;
    }
    return log;
}

// One reduction among `ranks`.
struct Case {
    Type type;
    uint32_t reduction;
    uint32_t ranks;
    // Ranks, from a first one on, that do not give the neutral number.
    uint32_t active;
    // Bits of a number.
    uint32_t bits;

    __device__ Case(uint32_t type_number, uint32_t reduction, uint32_t ranks)
        : type(type_of(type_number)), reduction(reduction), ranks(ranks) {
        const bool divides = reduction == AVG && type.significand > 0;
        const uint64_t most = uint64_t(1) << type.exact;
        if (divides) {
            active = 1;
        } else if (reduction == PROD) {
            active = ranks < type.doublings ? ranks : type.doublings;
        } else if (reduction == MAX || reduction == MIN) {
            active = ranks;
        } else {
            // A factor of two is in the sum of products.
            const uint64_t room = reduction == MULSUM ? most / 2 : most;
            active = ranks < room ? ranks : static_cast<uint32_t>(room);
        }
        if (reduction == PROD || divides) {
            bits = 1;
        } else if (reduction == MAX || reduction == MIN) {
            bits = type.exact;
        } else {
            // So that `active` numbers of so many bits, each perhaps doubled, stay below `most`.
            const uint32_t room = reduction == MULSUM ? type.exact - 1 : type.exact;
            const uint32_t sum = floor_log2(active) + ((active & (active - 1)) != 0 ? 1 : 0);
            bits = room > sum ? room - sum : 1;
        }
    }

    // The first of the active ranks.
    __device__ uint32_t first(uint64_t random) const {
        return static_cast<uint32_t>((random >> 48) % ranks);
    }

    // What `rank`, which is active, gives, where `random` is the element's word.
    __device__ int64_t number(uint64_t random, uint32_t rank) const {
        const uint64_t own = random * (2 * uint64_t(rank) + 1) >> 16;
        const uint64_t low = own & ((uint64_t(1) << bits) - 1);
        if (reduction == PROD) {
            return int64_t(1) << low;
        }
        if (reduction == AVG && type.significand > 0) {
            const uint32_t log = floor_log2(ranks);
            return int64_t(1) << (log < 8 ? log + low : log);
        }
        const bool is_negative = type.is_signed && (reduction == MAX || reduction == MIN) &&
            (own >> 47 & 1) != 0;
        return is_negative ? -static_cast<int64_t>(low) : static_cast<int64_t>(low);
    }

    __device__ int64_t neutral() const {
        return reduction == PROD ? 1 : 0;
    }

    __device__ int64_t given(uint64_t random, uint32_t rank) const {
        const uint32_t place = (rank + ranks - first(random)) % ranks;
        return place < active ? number(random, rank) : neutral();
    }

    // The bits of what must come out.
    __device__ uint64_t result(uint64_t random) const {
        int64_t all = neutral();
        uint32_t rank = first(random);
        for (uint32_t place = 0; place < active; place++) {
            const int64_t own = number(random, rank);
            if (reduction == PROD) {
                all *= own;
            } else if (reduction == MAX || reduction == MIN) {
                const bool is_better = reduction == MAX ? own > all : own < all;
                all = place == 0 || is_better ? own : all;
            } else if (reduction == MULSUM) {
                all += own << (rank % 2);
            } else {
                all += own;
            }
            rank = rank + 1 == ranks ? 0 : rank + 1;
        }
        if (reduction != AVG) {
            return encode(all);
        }
        return type.significand == 0 ? encode(all / static_cast<int64_t>(ranks))
                                     : encode_double(double(all) / double(ranks));
    }

    // The bits of a whole number.
    __device__ uint64_t encode(int64_t value) const {
        return type.significand == 0 ? static_cast<uint64_t>(value) : encode_double(double(value));
    }

    // The bits of the nearest float; of two the even one. None of the values is subnormal.
    __device__ uint64_t encode_double(double value) const {
        union {
            double number;
            uint64_t bits;
        } from = {value};
        if ((from.bits << 1) == 0) {
            return 0;
        }
        const uint32_t lost = 52 - type.significand;
        uint64_t magnitude = from.bits & ~(uint64_t(1) << 63);
        magnitude -= uint64_t(1023 - type.bias) << 52;
        if (lost > 0) {
            magnitude += (uint64_t(1) << (lost - 1)) - 1 + (magnitude >> lost & 1);
            magnitude >>= lost;
        }
        return magnitude | (from.bits >> 63) << (8 * type.size - 1);
    }
};

__device__ inline void store_element(uint8_t* target, uint32_t size, uint64_t bits) {
    switch (size) {
    case 1: *target = static_cast<uint8_t>(bits); break;
    case 2: *reinterpret_cast<uint16_t*>(target) = static_cast<uint16_t>(bits); break;
    case 4: *reinterpret_cast<uint32_t*>(target) = static_cast<uint32_t>(bits); break;
    default: *reinterpret_cast<uint64_t*>(target) = bits; break;
    }
}

__device__ inline uint64_t load_element(const uint8_t* source, uint32_t size) {
    switch (size) {
    case 1: return *source;
    case 2: return *reinterpret_cast<const uint16_t*>(source);
    case 4: return *reinterpret_cast<const uint32_t*>(source);
    default: return *reinterpret_cast<const uint64_t*>(source);
    }
}

// Calls `body` with each of `count` numbers, shared by all threads.
template <typename Body>
__device__ void for_each_element(uint64_t count, Body body) {
    const uint64_t threads = blockDim.x;
    TILES(tile, (count + threads - 1) / threads) {
        THREADS(lane) {
            const uint64_t index = tile * threads + lane;
            if (index < count) {
                body(index);
            }
        }
    }
}

// Stores what `rank` of `ranks` gives: `count` elements.
extern "C" __global__ void give(uint8_t* target, uint64_t count, uint64_t seed, uint32_t type,
                                uint32_t reduction, uint64_t rank_of_ranks) {
    const uint32_t rank = static_cast<uint32_t>(rank_of_ranks >> 32);
    const Case of(type, reduction, static_cast<uint32_t>(rank_of_ranks));
    for_each_element(count, [&](uint64_t index) {
        const int64_t value = of.given(pattern_word(seed, index), rank);
        store_element(target + index * of.type.size, of.type.size, of.encode(value));
    });
}

// Compares with what must come out: adds the number of wrong elements to `result[0]`, and lowers
// `result[1]` to the number of the first one. `ranks` has above its 32 bits how far the bits of an
// element may be from those expected. `result` is in the GPU's own memory.
extern "C" __global__ void compare_reduced(const uint8_t* found, uint64_t count, uint64_t seed,
                                           uint64_t type_and_reduction, uint64_t ranks,
                                           uint64_t* result) {
    const Case of(static_cast<uint32_t>(type_and_reduction >> 32),
                  static_cast<uint32_t>(type_and_reduction), static_cast<uint32_t>(ranks));
    const uint64_t tolerance = ranks >> 32;
    const uint64_t mask = ~uint64_t(0) >> (64 - 8 * of.type.size);
    uint64_t wrong = 0;
    uint64_t first = ~uint64_t(0);
    for_each_element(count, [&](uint64_t index) {
        const uint64_t expected = of.result(pattern_word(seed, index)) & mask;
        const uint64_t bits = load_element(found + index * of.type.size, of.type.size);
        const uint64_t distance = bits > expected ? bits - expected : expected - bits;
        if (distance > tolerance) {
            wrong++;
            first = index < first ? index : first;
        }
    });
    if (wrong != 0) {
        atomic_add(&result[0], wrong);
        atomic_min(&result[1], first);
    }
}
