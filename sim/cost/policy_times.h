#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// Policy operations by bytes per call, linear or log-log. Averages samples of equal bytes; continues along the last two, never falling;
// level below the first.
class PolicyTimes {
 public:
  // kInSteps: timed in steps of recipes. Operations with FLOPs take a + b bytes + c FLOPs (WorkPrice); others are linear. Not limited by
  // the datasheet.
  enum class Scale : std::uint8_t { kLinear, kLog, kInSteps };

  PolicyTimes() = default;
  PolicyTimes(std::vector<PolicySample> samples, const std::map<std::string, Scale>& scales);  // default: linear

  [[nodiscard]] bool empty() const { return samples_.empty(); }
  [[nodiscard]] const std::vector<PolicySample>& samples() const { return samples_; }
  [[nodiscard]] std::vector<std::string> ops() const;
  [[nodiscard]] bool has(std::string_view op) const { return curves_.contains(op); }
  [[nodiscard]] Scale scale(const std::string& op) const { return curves_.find(op)->second.scale; }
  // nullopt: not measured.
  [[nodiscard]] std::optional<SampleGrid::Value> at(std::string_view op, double bytes, double flops) const;

 private:
  struct Curve {
    Scale scale = Scale::kLinear;
    std::optional<WorkPrice> work;
    std::vector<double> bytes, ps;  // bytes: ascending
  };
  std::vector<PolicySample> samples_;
  std::map<std::string, Curve, std::less<>> curves_;
};

// tp<N>/policy.csv and policy.yaml of a kvlab profile; may be empty.
PolicyTimes read_policy_times(const std::string& folder);
void write_policy_times(const PolicyTimes& times, const std::string& folder);

}  // namespace kvlab
