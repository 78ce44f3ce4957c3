#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// Llama-3.1-8B (Grattafiori et al. 2024, arXiv:2407.21783, table 3).
ModelConfig llama_8b();

// A decode step with random weights over a full cache, compared with its kernels. Each layer of each sequence has its own pages, so no
// layer finds another's K and V in L2.
struct DecodeStepTimes {
  double step_seconds = 0;    // as a caller sees it, until drawn tokens are in CPU memory
  double device_seconds = 0;  // the launch: one graph
  double plain_seconds = 0;   // kernels launched one by one
  std::int64_t bytes = 0;     // weights, keys and values that a step reads, with new tokens
  struct Kernel {
    std::string name;
    std::int64_t launches = 0;
    double seconds = 0;  // all launches of a step, back to back, on each layer's weights and pages
  };
  std::vector<Kernel> kernels;
};

// Medians of `repeats`. Sequences attend to `context` tokens (at least 2), the new one included. Throws InputError if model or cache do not
// fit into GPU memory.
DecodeStepTimes time_decode_step(const ModelConfig& config, ElementType type, std::int32_t batch, std::int32_t context, int repeats,
                                 CudaContext& cuda);

}  // namespace kvlab
