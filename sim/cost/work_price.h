#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "sim/cost/sample_grid.h"

namespace kvlab {

// Batched call, counted as in kernels/ops.h.
struct PolicySample {
  // As in OpCall; host_to_device: copy from pinned memory; at_rest/RECIPE: unpacking and packing a step's sequences, bytes of K and V in
  // the model's type (UnpackOps).
  std::string op;
  std::int64_t rows = 0, tokens = 0, outputs = 0, bytes = 0, flops = 0;
  Picoseconds time{};
  double spread_frac = 0;
};

// launch + byte * bytes + flop * FLOPs, nonnegative, of least squared relative error.
class WorkPrice {
 public:
  explicit WorkPrice(std::span<const PolicySample> samples);  // not empty
  // Interpolated up to the samples' most bytes and FLOPs, else extrapolated.
  [[nodiscard]] SampleGrid::Value at(double bytes, double flops) const;

 private:
  using Vector3 = std::array<double, 3>;
  // Relative to the largest.
  [[nodiscard]] Vector3 work(double bytes, double flops) const { return {1, bytes / most_bytes_, flops / most_flops_}; }

  double most_bytes_ = 1, most_flops_ = 1;
  Vector3 ps_{};  // per launch, most bytes, most FLOPs
};

}  // namespace kvlab
