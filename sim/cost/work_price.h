#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "sim/cost/sample_grid.h"

namespace kvlab {

// One batched call of a policy's operation, as kernels/ops.h counts it, and how long it took.
struct PolicySample {
  // As in OpCall; host_to_device: a copy from pinned memory; at_rest/RECIPE: unpacking and packing all sequences of a step, over
  // the bytes of their K and V in the model's type (UnpackOps).
  std::string op;
  std::int64_t rows = 0, tokens = 0, outputs = 0, bytes = 0, flops = 0;
  Picoseconds time{};
  double spread_frac = 0;
};

// The time of an operation's calls: launch + byte * bytes + flop * FLOPs, none of the three below zero, with the least squared relative
// error over samples. All subsets of the three are tried.
class WorkPrice {
 public:
  explicit WorkPrice(std::span<const PolicySample> samples);  // one at least
  // Interpolated where no sample has less of one of the two than the call, else extrapolated.
  [[nodiscard]] SampleGrid::Value at(double bytes, double flops) const;

 private:
  using Vector3 = std::array<double, 3>;
  // The work of a call, in shares of the samples' largest.
  [[nodiscard]] Vector3 work(double bytes, double flops) const { return {1, bytes / most_bytes_, flops / most_flops_}; }

  double most_bytes_ = 1, most_flops_ = 1;
  Vector3 ps_{};  // of a launch, of the most bytes, of the most FLOPs
};

}  // namespace kvlab
