#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/sample_grid.h"

namespace kvlab {

// One batched call of a policy's operation, as kernels/ops.h counts it, and how long it took.
struct PolicySample {
  // The folder in kernels/; kHostToDevice: a copy from pinned host memory; at_rest/RECIPE: what all sequences of a step take to come from
  // rest and to go there, over the bytes of their K and V in the model's type (UnpackOps).
  std::string op;
  std::int64_t rows = 0, tokens = 0, outputs = 0, bytes = 0, flops = 0;
  Picoseconds time = 0;
  double spread_frac = 0;
};
inline constexpr std::string_view kHostToDevice = "host_to_device", kDeviceToHost = "device_to_host";

// Times of policy operations over the bytes that a call moves: straight lines between the samples of an operation, or straight lines
// over the logarithms of both, whichever the profile says. Samples of equal bytes count as their mean; beyond the last bytes the time goes
// on along the last two, never falling; below the first it stays level.
class PolicyTimes {
 public:
  // kInSteps: timed in steps of recipes. Prompts and decode steps differ in their FLOPs for a byte, so operations with FLOPs take
  // a + b bytes + c FLOPs (Plane), others straight lines. A call may do less than what it is charged with (bounds, or what stands for
  // another's work): no datasheet tells how fast it can be.
  enum class Scale : std::uint8_t { kLinear, kLog, kInSteps };

  PolicyTimes() = default;
  PolicyTimes(std::vector<PolicySample> samples, const std::map<std::string, Scale>& scales);  // without a scale: linear

  [[nodiscard]] bool empty() const { return samples_.empty(); }
  [[nodiscard]] const std::vector<PolicySample>& samples() const { return samples_; }
  [[nodiscard]] std::vector<std::string> ops() const;
  [[nodiscard]] bool has(std::string_view op) const { return curves_.contains(op); }
  [[nodiscard]] Scale scale(const std::string& op) const { return curves_.find(op)->second.scale; }
  // Of one call; nothing where the operation was not measured.
  [[nodiscard]] std::optional<SampleGrid::Value> at(std::string_view op, double bytes, double flops) const;

 private:
  // ps = launch + byte * bytes + flop * FLOPs, none below zero: of least squared relative error over the samples.
  struct Plane {
    double launch = 0, byte = 0, flop = 0;
    double most_bytes = 0, most_flops = 0;  // of a sample
  };
  static Plane plane_through(std::span<const PolicySample> samples);
  struct Curve {
    Scale scale = Scale::kLinear;
    std::optional<Plane> plane;
    std::vector<double> bytes, ps;  // ascending bytes
  };
  std::vector<PolicySample> samples_;
  std::map<std::string, Curve, std::less<>> curves_;
};

// tp<N>/policy.csv and policy.yaml of a profile in our own format; empty where there is none.
PolicyTimes read_policy_times(const std::string& folder);
void write_policy_times(const PolicyTimes& times, const std::string& folder);

}  // namespace kvlab
