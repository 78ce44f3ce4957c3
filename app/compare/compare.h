#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "app/results/results.h"
#include "app/runs/sweep/experiment.h"
#include "app/runs/sweep/score_interval.h"
#include "traces/logs/real_log.h"

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

struct RunPlace {
  std::filesystem::path folder;
  std::string id;
};

// Differences in model, hardware, profile or trace, from manifest.json and resolved.yaml. Empty if equal or unknown.
std::vector<std::string> remarks_on_settings(const RunPlace& a, const RunPlace& b);

// If the simulated model differs, or may differ; "" if equal or unnamed.
std::string remark_on_model(const std::string& logged, const RunPlace& simulated);

struct SimulatedRun {
  std::vector<ServedRequest> requests;   // completed
  std::map<std::string, double> gap_ms;  // statistic -> gap between tokens, only in summary.csv
};

struct SimulatedRuns {
  std::string first_id;  // of any run, for common settings
  std::vector<SimulatedRun> ensemble;
  std::vector<SimulatedRun> unjittered;  // empty unless jitter is an axis with value 0

  // As a client measures.
  void count_from_arrival();
};

std::map<std::string, std::vector<ServedRequest>> read_completed(const std::filesystem::path& file);

// Throws InputError if an axis other than jitter varies, or there are no runs.
SimulatedRuns load_simulated_runs(const std::filesystem::path& folder);

struct Comparison {
  std::string csv, text;
};

// Six decimals; "" for NaN.
std::string ms_text(double value);
// "+1.25%"; "" for NaN.
std::string percent_text(double frac);

// For decode-only steps by padded batch size.
struct BatchTime {
  std::int64_t padded_batch = 0;
  double mean_ms = 0;
  std::int64_t num_steps = 0;
};

// vLLM's CUDA graph sizes (1, 2, 4, multiples of 8 to 256, of 16 to 512); above, the batch itself.
std::int64_t padded_batch(std::int64_t batch);

// From finish times. After the last first token the batch is constant between finishes, except for preemption. Requests with the same first
// token give steps exactly; their median estimates the duration. A duration per gap is fitted so that short gaps are whole numbers of
// steps, changes between gaps are small, and all are near that median; the pairs' step counts choose the weights. Drops gaps more than a
// fifth of a step off, and durations at an end of the searched range.
std::vector<BatchTime> decode_step_times(const std::vector<ServedRequest>& requests);

// Writes validation.csv, throughput.csv (needs start times) and validation_steps.csv (docs/results.md); of a log of statistics only the
// first. The runs are one configuration under several seeds; those jittered by `trace.jitter_ms` are the ensemble. out: null: no tables.
// Throws InputError if results cannot be compared.
void validate_results(const std::string& real_requests, ResultsFolder& results, std::ostream* out);

// If axis 'host' has sim and engine, pairs runs of equal choices and seed in validation.csv (ttft, tpot, e2e in ms; diff_frac = simulated /
// real - 1). Returns false without a pair. Throws InputError if a median over seeds exceeds assert_frac > 0.
bool compare_hosts(const Experiment& experiment, ResultsFolder& results, double assert_frac, std::ostream* out);

}  // namespace kvlab
