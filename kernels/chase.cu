// The latency of one load: a list in which each element says where the next one lies.

#include "shared.cuh"

// Follows `hops` pointers: the 8 bytes at `list + offset` are the offset of the next element. Of an
// offset only the bits of `mask` count, so that wrong data leads to a wrong place in the list and
// not out of it.
// `cycles[hop]` becomes the time of one load in the GPU's clock cycles: from before its address is
// formed to when its value can be used. `result` becomes the last offset, and how long the whole
// loop lasted, the stores of `cycles` included: in cycles, and in nanoseconds by the GPU's global
// timer. Both are of the same stretch, so that they tell how long a cycle is.
//
// A warp issues its instructions in order, and one whose operand has not come yet holds up all
// behind it. The value is stored to shared memory between load and clock: that store cannot issue
// before the value is there, nor the clock be read before the store has issued. The load and the
// store are volatile and the clock is too, so the compiler keeps their order. The next load needs
// the value of this one, so two are never in flight. What is measured holds the reading of the
// clock and forming the address, a few cycles, and no wait for the stores.
extern "C" __global__ void chase(const uint8_t* list, uint64_t offset, uint64_t hops,
                                 uint32_t* cycles, uint64_t* result, uint64_t mask) {
    [[maybe_unused]] __shared__ volatile uint64_t arrived;
    if (blockIdx.x != 0 || threadIdx.x != 0) {
        return;
    }
    const uint64_t begin_ns = global_timer_ns();
    const uint64_t begin = clock_cycles();
    // Not unrolled: every hop is the same code.
#pragma unroll 1
    for (uint64_t hop = 0; hop < hops; hop++) {
        const uint64_t before = clock_cycles();
        offset = load_next(list + (offset & mask));
        arrived = offset;
        const uint64_t passed = clock_cycles() - before;
        cycles[hop] = passed < 0xFFFFFFFF ? static_cast<uint32_t>(passed) : 0xFFFFFFFF;
    }
    result[0] = offset;
    result[1] = clock_cycles() - begin;
    result[2] = global_timer_ns() - begin_ns;
}
