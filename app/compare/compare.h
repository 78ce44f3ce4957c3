#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/runs/sweep/student_t.h"

namespace kvlab {

// Mean of paired differences and half width of its 95 % confidence interval (Student's t), infinite for one pair.
struct PairedDifference {
  std::size_t num_pairs = 0;
  double mean_a = 0, mean_b = 0, mean = 0, half_width = 0;
};
PairedDifference paired_difference(const std::vector<double>& a, const std::vector<double>& b);

struct ComparedMetric {
  std::string configuration;  // "AXIS=VALUE ..." of common axes, or ""
  std::string metric;
  PairedDifference difference;
};
// Metrics of all common configurations, in the first folder's order. Throws InputError as compare_results().
std::vector<ComparedMetric> compared_metrics(const std::string& folder_a, const std::string& folder_b, bool every,
                                             const std::vector<std::string>& where = {});

// Matches runs by common axes and seed. Per configuration: differences B - A with confidence intervals over seeds, and the requests with
// the largest change of end-to-end latency. every: all numeric columns. where: "AXIS=VALUE" filters of folders with that axis. Throws
// InputError, naming the axis, if no run or several match.
std::string compare_results(const std::string& folder_a, const std::string& folder_b, bool every, std::size_t num_requests,
                            const std::vector<std::string>& where = {});

}  // namespace kvlab
