// Holding a stream until the host lets it go.

#include "shared.cuh"

// Waits until `*flag`, in host memory, has reached `ticket`, or for `timeout_ns`: then
// `*timed_out`, in host memory, becomes 1. Tickets are compared by their difference, so that they
// may wrap around.
extern "C" __global__ void hold(const uint32_t* flag, uint32_t ticket, uint64_t timeout_ns,
                                uint32_t* timed_out) {
    if (blockIdx.x != 0 || threadIdx.x != 0) {
        return;
    }
    // Volatile: loaded anew each time, relaxed and of system scope (PTX ISA, "Volatile operation").
    const volatile uint32_t* now = flag;
    const uint64_t begin_ns = global_timer_ns();
    while (static_cast<int32_t>(*now - ticket) < 0) {
        if (global_timer_ns() - begin_ns >= timeout_ns) {
            *timed_out = 1;
            return;
        }
        short_sleep();
    }
}
