// Load without memory, until the clocks have risen, and how fast they are.

#include "shared.cuh"

// Every thread spins for `duration_ns` by the GPU's global timer. `result` becomes how long that
// lasted for one of them: in the clock cycles of its multiprocessor, and in nanoseconds.
extern "C" __global__ void spin(uint64_t duration_ns, uint64_t* result) {
    const uint64_t begin_ns = global_timer_ns();
    const uint64_t begin = clock_cycles();
    uint64_t passed_ns;
    do {
        passed_ns = global_timer_ns() - begin_ns;
    } while (passed_ns < duration_ns);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        result[0] = clock_cycles() - begin;
        result[1] = passed_ns;
    }
}
