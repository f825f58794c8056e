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
};

// Runs the blocks from `first` up to, but not, `last`. Returns 0, or 1 if there is no such kernel.
extern "C" int simgpu_run_blocks(const SimgpuLaunch* launch, uint32_t first, uint32_t last) {
    for (const auto& kernel : KERNELS) {
        if (strcmp(kernel.name, launch->kernel) != 0) {
            continue;
        }
        VirtualTime time = {launch->latency_ns, launch->context, 0};
        virtual_time = strcmp(kernel.name, "chase") == 0 ? &time : nullptr;
        gridDim.x = launch->grid;
        blockDim.x = launch->block;
        kernel.run(launch->parameters, first, last);
        virtual_time = nullptr;
        return 0;
    }
    return 1;
}
