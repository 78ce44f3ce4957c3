#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/work_price.h"

namespace kvlab {

// Policy operations by bytes per call, linear or log-log. Averages samples of equal bytes; continues along the last two, never falling;
// level below the first.
class PolicyTimes {
 public:
  // kInSteps: timed in steps of recipes. Operations with FLOPs take a + b bytes + c FLOPs (WorkPrice), since prompts and decode differ in
  // FLOPs per byte; others are linear. Charged work may exceed actual work, so the datasheet does not limit speed.
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
