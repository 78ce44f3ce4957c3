#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/work_price.h"

namespace kvlab {

// Times of policy operations over the bytes that a call moves: straight lines between the samples of an operation, or straight lines over
// the logarithms of both, as the profile says. Samples of equal bytes count as their mean; beyond the last bytes the time continues along
// the last two, never falling; below the first it stays level.
class PolicyTimes {
 public:
  // kInSteps: timed in steps of recipes. Prompts and decode steps differ in their FLOPs for a byte, so operations with FLOPs take a + b
  // bytes + c FLOPs (WorkPrice), others straight lines. A call may do less work than it is charged with (bounds, or substitutes for
  // another's work), so no datasheet limits its speed.
  enum class Scale : std::uint8_t { kLinear, kLog, kInSteps };

  PolicyTimes() = default;
  PolicyTimes(std::vector<PolicySample> samples, const std::map<std::string, Scale>& scales);  // without a scale: linear

  [[nodiscard]] bool empty() const { return samples_.empty(); }
  [[nodiscard]] const std::vector<PolicySample>& samples() const { return samples_; }
  [[nodiscard]] std::vector<std::string> ops() const;
  [[nodiscard]] bool has(std::string_view op) const { return curves_.contains(op); }
  [[nodiscard]] Scale scale(const std::string& op) const { return curves_.find(op)->second.scale; }
  // The time of one call; nothing: the operation was not measured.
  [[nodiscard]] std::optional<SampleGrid::Value> at(std::string_view op, double bytes, double flops) const;

 private:
  struct Curve {
    Scale scale = Scale::kLinear;
    std::optional<WorkPrice> work;
    std::vector<double> bytes, ps;  // ascending bytes
  };
  std::vector<PolicySample> samples_;
  std::map<std::string, Curve, std::less<>> curves_;
};

// tp<N>/policy.csv and policy.yaml of a profile in our own format; empty where there is none.
PolicyTimes read_policy_times(const std::string& folder);
void write_policy_times(const PolicyTimes& times, const std::string& folder);

}  // namespace kvlab
