#pragma once

#include <string>
#include <vector>

#include "app/runs/sweep/score_interval.h"

namespace kvlab {

// half_width: 95 % confidence (Student's t), infinite for one pair.
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
// In the first folder's order. Throws InputError as compare_results().
std::vector<ComparedMetric> compared_metrics(const std::string& folder_a, const std::string& folder_b, bool every,
                                             const std::vector<std::string>& where = {});

// Matches runs by common axes and seed. Prints differences B - A with confidence intervals over seeds, and the requests whose latency
// changed most. every: all numeric columns. where: "AXIS=VALUE" filters. Throws InputError if no run or several match.
std::string compare_results(const std::string& folder_a, const std::string& folder_b, bool every, std::size_t num_requests,
                            const std::vector<std::string>& where = {});

}  // namespace kvlab
