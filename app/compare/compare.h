#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab {

// Mean of paired differences and half the width of its 95 % confidence interval (Student's t). With one pair there is no
// interval: half_width is infinite.
struct PairedDifference {
  std::size_t num_pairs = 0;
  double mean_a = 0, mean_b = 0, mean = 0, half_width = 0;
};
PairedDifference paired_difference(const std::vector<double>& a, const std::vector<double>& b);

// 97.5 % quantile of Student's t with n degrees of freedom, n >= 1.
double student_t_975(std::size_t degrees);

// One metric of one configuration in two results folders.
struct ComparedMetric {
  std::string configuration;  // "AXIS=VALUE ..." of the axes that both have; "" where there are none
  std::string metric;
  PairedDifference difference;  // over the seeds of the configuration
};
// Metrics of all configurations that both folders have, in the order of the first one's rows. InputError as compare_results().
std::vector<ComparedMetric> compared_metrics(const std::string& folder_a, const std::string& folder_b, bool every);

// Compares two results folders: runs are matched by the axes both have and by seed; per configuration, each metric's
// difference B - A with its confidence interval over seeds, and the requests whose end-to-end latency moved most. every: all
// numeric columns instead of the main ones. InputError where nothing or more than one run matches.
std::string compare_results(const std::string& folder_a, const std::string& folder_b, bool every, std::size_t num_requests);

}  // namespace kvlab
