// Through a multicast address, behind which several GPUs have memory: NVLink switches store what
// comes there in all of it, and load from there the sum of what all of it holds ("PTX ISA",
// multimem). All data is whole vectors on boundaries of 16 bytes, since such an address takes no
// other accesses.

#include "shared.cuh"

#ifdef __CUDACC__

// Stores in the memory of every GPU. The instruction moves bits, whatever the type.
__device__ inline void store_in_all(uint8_t* target, Vector value) {
    asm volatile("multimem.st.weak.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(target),
                 "f"(__uint_as_float(low_half(value.low))),
                 "f"(__uint_as_float(high_half(value.low))),
                 "f"(__uint_as_float(low_half(value.high))),
                 "f"(__uint_as_float(high_half(value.high)))
                 : "memory");
}

// The sums of four 32-bit floats, over the memory of every GPU.
__device__ inline Vector sum_of_all(const uint8_t* source) {
    float sums[4];
    asm volatile("multimem.ld_reduce.weak.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
                 : "l"(source)
                 : "memory");
    return {joined(__float_as_uint(sums[0]), __float_as_uint(sums[1])),
            joined(__float_as_uint(sums[2]), __float_as_uint(sums[3]))};
}

#endif

// Blocks of up to 512 threads, of which a multiprocessor holds two: no more than 64 registers.
#define MULTICAST_BOUNDS __launch_bounds__(512, 2)

// Stores the pattern of `seed` in the memory of every GPU.
extern "C" __global__ MULTICAST_BOUNDS void multicast_store(uint8_t* target, uint64_t bytes,
                                                            uint64_t seed) {
    for_each_batch(bytes / 16, [=](auto batch) {
        uint64_t state = pattern_state(seed, 2 * batch.first);
#pragma unroll
        for (int place = 0; place < DEPTH; place++) {
            if (batch.has(place)) {
                store_in_all(target + 16 * batch.at(place), {mixed(state), mixed(state + STEP)});
            }
            state += 2 * batch.stride * STEP;
        }
    });
}

// Loads the sums of what every GPU has at `source`; `store` takes each with its offset.
template <typename Store>
__device__ void reduce(const uint8_t* source, uint64_t bytes, Store store) {
    for_each_batch(bytes / 16, [=](auto batch) {
        Vector sums[DEPTH] = {};
#pragma unroll
        for (int place = 0; place < DEPTH; place++) {
            if (batch.has(place)) {
                sums[place] = sum_of_all(source + 16 * batch.at(place));
            }
        }
#pragma unroll
        for (int place = 0; place < DEPTH; place++) {
            if (batch.has(place)) {
                store(16 * batch.at(place), sums[place]);
            }
        }
    });
}

// Stores the sums in `target`, in the GPU's own memory.
extern "C" __global__ MULTICAST_BOUNDS void multimem_reduce(uint8_t* target, const uint8_t* source,
                                                            uint64_t bytes) {
    reduce(source, bytes, [=](uint64_t offset, Vector sum) { store_vector(target + offset, sum); });
}

// Stores the sums in the memory of every GPU.
extern "C" __global__ MULTICAST_BOUNDS void multimem_all_reduce(uint8_t* target,
                                                                const uint8_t* source,
                                                                uint64_t bytes) {
    reduce(source, bytes, [=](uint64_t offset, Vector sum) { store_in_all(target + offset, sum); });
}
