// The kernels of a machine with GPUs, compiled for this CPU.

#include "cpu.h"

#include <stddef.h>
#include <string.h>

#include <utility>

#include "chase.cu"
#include "copy.cu"
#include "hold.cu"
#include "pattern.cu"
#include "values.cu"

// Behind a multicast address, as `mod.rs` has it too: where this process has each GPU's memory.
struct SimgpuMulticast {
    uint64_t start;
    const uint64_t* members;
    uint64_t count;
};

namespace {

thread_local const SimgpuMulticast* multicast;

// Where member number `member` has what is at a multicast address.
inline uint8_t* of_member(const uint8_t* address, uint64_t member) {
    const uint64_t offset = reinterpret_cast<uint64_t>(address) - multicast->start;
    return reinterpret_cast<uint8_t*>(multicast->members[member] + offset);
}

inline void store_in_all(uint8_t* target, Vector value) {
    for (uint64_t member = 0; member < multicast->count; member++) {
        store_vector(of_member(target, member), value);
    }
}

inline Vector sum_of_all(const uint8_t* source) {
    float sums[4] = {};
    for (uint64_t member = 0; member < multicast->count; member++) {
        float own[4];
        memcpy(own, of_member(source, member), sizeof own);
        for (int place = 0; place < 4; place++) {
            sums[place] += own[place];
        }
    }
    Vector sum;
    memcpy(&sum, sums, sizeof sum);
    return sum;
}

}  // namespace

#include "multicast.cu"

namespace {

using Blocks = void (*)(const uint8_t* const* parameters, uint32_t first, uint32_t last);

template <typename Parameter>
Parameter load_parameter(const uint8_t* bytes) {
    Parameter value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

template <typename... Parameters, size_t... index>
void call(void (*kernel)(Parameters...), const uint8_t* const* parameters,
          std::index_sequence<index...>) {
    kernel(load_parameter<Parameters>(parameters[index])...);
}

template <typename... Parameters>
void run_blocks(void (*kernel)(Parameters...), const uint8_t* const* parameters, uint32_t first,
                uint32_t last) {
    for (uint32_t block = first; block < last; block++) {
        blockIdx.x = block;
        call(kernel, parameters, std::index_sequence_for<Parameters...>());
    }
}

template <auto kernel>
void blocks(const uint8_t* const* parameters, uint32_t first, uint32_t last) {
    run_blocks(kernel, parameters, first, last);
}

constexpr struct {
    const char* name;
    Blocks run;
} KERNELS[] = {
    {"copy_by_read", blocks<copy_by_read>},
    {"copy_by_write", blocks<copy_by_write>},
    {"read_only", blocks<read_only>},
    {"write_only", blocks<write_only>},
    {"fill", blocks<fill>},
    {"compare", blocks<compare>},
    {"give", blocks<give>},
    {"compare_reduced", blocks<compare_reduced>},
    {"hold", blocks<hold>},
    {"chase", blocks<chase>},
    {"multicast_store", blocks<multicast_store>},
    {"multimem_reduce", blocks<multimem_reduce>},
    {"multimem_all_reduce", blocks<multimem_all_reduce>},
};

}  // namespace

// A launch, as `mod.rs` has it too.
struct SimgpuLaunch {
    // Ends with a zero.
    const char* kernel;
    const uint8_t* const* parameters;
    uint32_t grid;
    uint32_t block;
    // The latency of one load, for `chase`.
    double (*latency_ns)(const void* context, uint64_t address);
    const void* context;
    // For those that go through a multicast address.
    SimgpuMulticast multicast;
};

// Runs the blocks from `first` up to, but not, `last`. Returns 0, or 1 if there is no such kernel.
extern "C" int simgpu_run_blocks(const SimgpuLaunch* launch, uint32_t first, uint32_t last) {
    for (const auto& kernel : KERNELS) {
        if (strcmp(kernel.name, launch->kernel) != 0) {
            continue;
        }
        VirtualTime time = {launch->latency_ns, launch->context, 0};
        virtual_time = strcmp(kernel.name, "chase") == 0 ? &time : nullptr;
        multicast = &launch->multicast;
        gridDim.x = launch->grid;
        blockDim.x = launch->block;
        kernel.run(launch->parameters, first, last);
        virtual_time = nullptr;
        multicast = nullptr;
        return 0;
    }
    return 1;
}
