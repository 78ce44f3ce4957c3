#pragma once

#include <cstdint>
#include <iosfwd>
#include <vector>

#include "app/commands/estimate.h"

namespace kvlab {

// `kvlab characterize`: from which batch on a step takes the GPU longer than launching its kernels one by one takes the host. That is the
// transition batch of TKLQT (arXiv:2504.11750): below it the queue of kernels is empty, above it kernels wait for each other. Not for
// CUDA graphs, which are one launch.
struct CharacterizeCommand : MachineOptions {
  std::int32_t max_batch = 256;
  std::int32_t tokens = 512;   // cached by each decode row, or prompt length
  bool is_prefill = false;     // the step computes prompts; else a token of each row
  double dispatch_us = 2.375;  // from one launch to the next; the default is a null kernel's launch (ibid., Intel host with H100)
};

// A step of one rank. kernels: the operations that the cost model knows, each one kernel. Engines without fusion launch more.
struct LaunchPoint {
  std::int32_t batch = 0;
  std::int64_t kernels = 0;
  double gpu_us = 0, host_us = 0;
  [[nodiscard]] bool is_host_bound() const { return gpu_us < host_us; }
};

// Batches 1, 2, 4, ... and the largest.
std::vector<LaunchPoint> launch_points(const CostSetup& setup, const CharacterizeCommand& command);
int print_characterization(const CharacterizeCommand& command, std::ostream& out);

}  // namespace kvlab
