#pragma once

#include <cstdint>
#include <string>

#include "sim/cost/model_spec.h"

namespace kvlab {

inline constexpr double kPsPerSecond = 1e12;

// One GPU, by its datasheet, and how much of it a good kernel reaches.
struct HardwareSpec {
  std::string name, file, source;  // source: the datasheet the figures come from
  std::int64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;
  std::int64_t l2_bytes = 0;
  double fp16_flops = 0, bf16_flops = 0, fp8_flops = 0, fp4_flops = 0,
         int8_ops = 0;                        // dense tensor-core rates, fp32 sums; 0: not supported
  double link_bytes_per_s = 0;                // GPU to GPU, one direction: NVLink where there is one, else PCIe
  double pcie_bytes_per_s = 0;                // GPU to host, one direction
  double link_latency_ns = 0;                 // of one hop of a collective
  double launch_ns = 0;                       // of one kernel
  double flops_frac = 0, bandwidth_frac = 0;  // of peak that kernels reach

  // Peak rate of the tensor cores for activations of `dtype`; where they lack it, the rate of the type it is computed in.
  [[nodiscard]] double peak_flops(Dtype dtype) const;
};

// `name_or_path`: a file, or a name in `hardware_folder`. InputError with file:line:column, also for unknown keys.
HardwareSpec load_hardware_spec(const std::string& name_or_path, const std::string& hardware_folder);

}  // namespace kvlab
