#pragma once

#include <benchmark/benchmark.h>

#include <cmath>
#include <string_view>
#include <vector>

namespace kvlab {

// Removes numbers that are not finite, which JSON lacks: relative deviations of counters that are always 0.
template <class Reporter>
class FiniteNumbers : public Reporter {
 public:
  using Run = benchmark::BenchmarkReporter::Run;
  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> finite = runs;
    for (Run& run : finite) {
      std::erase_if(run.counters, [](const auto& counter) { return !std::isfinite(counter.second.value); });
      for (double* time : {&run.real_accumulated_time, &run.cpu_accumulated_time})
        if (!std::isfinite(*time)) *time = 0;
    }
    Reporter::ReportRuns(finite);
  }
};

// Reporters that the arguments select.
struct ReportFormats {
  bool shows_json = false, writes_file = false, writes_json = true;
  void read(std::string_view argument) {
    if (argument == "--benchmark_format=json") shows_json = true;
    if (argument.starts_with("--benchmark_out=")) writes_file = true;
    if (argument.starts_with("--benchmark_out_format=")) writes_json = argument.ends_with("=json");
  }
};

// Exit status if the filter matches nothing.
constexpr int kNothingMatches = 3;
inline int status_of_matches(std::size_t matches) { return matches == 0 ? kNothingMatches : 0; }

}  // namespace kvlab
