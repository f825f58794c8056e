// What the kernels need of CUDA, on a CPU: a block is one call, which goes through its threads.
#pragma once

#include <stdint.h>
#include <time.h>

#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __shared__
#define __launch_bounds__(threads, blocks)

#define TILES(tile, count) \
    for (uint64_t tile = blockIdx.x; tile < (count); tile += gridDim.x)
#define THREADS(lane) for (uint32_t lane = 0; lane < blockDim.x; lane++)

namespace {

struct Place {
    uint32_t x;
};

// Of the block that runs on this thread. Only `THREADS` makes a difference between threads.
thread_local Place blockIdx;
thread_local Place blockDim;
thread_local Place gridDim;
constexpr Place threadIdx = {0};

// The time that pointer chasing sees: it passes only in loads. One cycle lasts 1 ns.
struct VirtualTime {
    double (*latency_ns)(const void* context, uint64_t address);
    const void* context;
    // Finer than a cycle, so that the cycles of many hops add up.
    uint64_t ps;
};

// Null while the kernel that runs does not chase pointers.
thread_local VirtualTime* virtual_time;

inline uint64_t load_next(const uint8_t* address) {
    const uint64_t place = reinterpret_cast<uint64_t>(address);
    const double ns = virtual_time->latency_ns(virtual_time->context, place);
    virtual_time->ps += static_cast<uint64_t>(ns * 1000 + 0.5);
    return *reinterpret_cast<const volatile uint64_t*>(address);
}

inline uint64_t clock_cycles() {
    return virtual_time->ps / 1000;
}

inline uint64_t global_timer_ns() {
    if (virtual_time != nullptr) {
        return clock_cycles();
    }
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

inline void short_sleep() {
    const timespec pause = {0, 20000};
    nanosleep(&pause, nullptr);
}

inline void atomic_add(uint64_t* sum, uint64_t value) {
    __atomic_fetch_add(sum, value, __ATOMIC_RELAXED);
}

inline void atomic_min(uint64_t* least, uint64_t value) {
    uint64_t now = __atomic_load_n(least, __ATOMIC_RELAXED);
    while (value < now && !__atomic_compare_exchange_n(least, &now, value, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {
    }
}

// The value is that of the whole block already.
inline void add_from_all(uint64_t* sum, uint64_t value) {
    atomic_add(sum, value);
}

inline int __ffsll(uint64_t value) {
    return __builtin_ffsll(static_cast<long long>(value));
}

}  // namespace
