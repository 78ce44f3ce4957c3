#pragma once

#include <cstdint>
#include <iosfwd>
#include <vector>

#include "app/commands/estimate.h"

namespace kvlab {

// `kvlab characterize`: from which batch on a step takes the GPU longer than the CPU needs for launches (TKLQT, arXiv:2504.11750). Not for
// CUDA graphs.
struct CharacterizeCommand : MachineOptions {
  std::int32_t max_batch = 256;
  std::int32_t tokens = 512;   // cached per decode row, or prompt length
  bool is_prefill = false;     // else one token per row
  double dispatch_us = 2.375;  // between launches; default: a null kernel's launch (ibid., Intel CPU with H100)
};

// One rank. kernels: one per operation of the cost model; engines without fusion launch more.
struct LaunchPoint {
  std::int32_t batch = 0;
  std::int64_t kernels = 0;
  double gpu_us = 0, host_us = 0;
  [[nodiscard]] bool is_host_bound() const { return gpu_us < host_us; }
};

// Batches 1, 2, 4, ... and the largest.
std::vector<LaunchPoint> launch_points(const CostSetup& setup, const CharacterizeCommand& command);
int print_characterization(const CharacterizeCommand& command, std::ostream& out);
CLI::App* add_characterize_command(CLI::App& app, CharacterizeCommand& command);

}  // namespace kvlab
