#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// The shape of Llama-3.1-8B (Grattafiori et al. 2024, arXiv:2407.21783, table 3).
ModelConfig llama_8b();

// A decode step of a model with random weights over a full cache, against its kernels. Each layer of each sequence has pages of its own: as
// in use, no layer finds another's keys and values in L2.
struct DecodeStepTimes {
  double step_seconds = 0;    // as a caller sees it: tables, uploads, launch, the drawn tokens back on the host
  double device_seconds = 0;  // the launch alone: one graph
  double plain_seconds = 0;   // the same kernels launched one by one
  std::int64_t bytes = 0;     // weights, keys and values that a step reads, its new tokens' among them
  struct Kernel {
    std::string name;
    std::int64_t launches = 0;
    double seconds = 0;  // of all launches of a step, back to back, each on its layer's weights and pages
  };
  std::vector<Kernel> kernels;
  [[nodiscard]] double kernel_seconds() const;
};

// Medians of `repeats`. Every sequence attends to `context` tokens, at least 2, of which the new one is the last. Error (InputError): model
// or cache do not fit into the GPU's memory.
DecodeStepTimes time_decode_step(const ModelConfig& config, ElementType type, std::int32_t batch, std::int32_t context, int repeats,
                                 CudaContext& cuda);

}  // namespace kvlab
