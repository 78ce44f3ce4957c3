#include "app/compare/points.h"

#include <fmt/format.h>
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>

#include <cmath>
#include <ostream>

#include "app/results/results.h"
#include "app/results/safe_files.h"
#include "app/runs/kinds/simulation.h"
#include "app/runs/plan/serving_plan.h"
#include "app/runs/sweep/experiment.h"
#include "app/runs/sweep/progress.h"
#include "base/error.h"
#include "base/quantile.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

constexpr const char* kRowFile = "row";  // a row's experiment in messages

struct PointRow {
  std::string id;
  std::optional<PointExperiment> experiment;
  double simulated_tpot_ms = 0;
  std::string reason;

  [[nodiscard]] double diff_frac() const { return simulated_tpot_ms / experiment->real_tpot_ms - 1; }
};

// Mean over requests that run while the loop is full.
class SteadyTpot final : public RunSink {
 public:
  SteadyTpot(const PointExperiment& point, const RunOptions& options)
      : begin_(point.concurrency), end_(point.requests - point.concurrency), options_(options) {}

  void request(const RequestRecord& record) override {
    options_.check_stop();
    if (record.outcome != Outcome::kCompleted || record.number < begin_ || record.number >= end_) return;
    sum_ms_ += to_s(record.last_token - record.first_token) * 1e3 / (record.output_tokens - 1);
    ++count_;
  }
  [[nodiscard]] double mean_ms() const {
    if (count_ == 0) throw PointLeftOut("no request completes in the simulation");
    return sum_ms_ / static_cast<double>(count_);
  }

 private:
  std::uint64_t begin_, end_, count_ = 0;
  RunOptions options_;
  double sum_ms_ = 0;
};

double simulate_point(const PointExperiment& point, const RunOptions& options) {
  const Experiment experiment = parse_experiment(point.yaml, kRowFile, {});
  Params p = experiment.params(experiment.runs.at(0));
  read_kind(p);
  ServingPlan plan = read_serving_plan(p, experiment.runs[0].seed);
  read_requests(p, plan);
  if (compute_dtype(plan.cost.model) == Dtype::kFp4 && plan.cost.hardware.fp4_flops == 0)
    throw PointLeftOut(fmt::format("{} has no fp4 rate", plan.cost.hardware.name));
  SteadyTpot sink(point, options);
  const RunSummary summary = simulate_with_oracle(plan.setup, plan.trace.open, sink, options);
  if (summary.latencies.rejected > 0) throw PointLeftOut("the simulator rejects its requests: " + summary.first_rejection);
  return sink.mean_ms();
}

// In the generated experiment.
std::string without_place(const std::string& message) {
  const std::size_t end = message.starts_with(std::string(kRowFile) + ":") ? message.find(": ") : std::string::npos;
  return end == std::string::npos ? message : message.substr(end + 2);
}

std::vector<PointRow> read_points(PointRows& rows) {
  std::vector<PointRow> points(rows.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].id = rows.id(i);
    try {
      points[i].experiment = rows.experiment(i);
    } catch (const PointLeftOut& e) {
      points[i].reason = e.what();
    }
  }
  return points;
}

void run_point(PointRow& row, const RunOptions& options) {
  try {
    row.simulated_tpot_ms = simulate_point(*row.experiment, options);
  } catch (const PointLeftOut& e) {
    row.reason = e.what();
  } catch (const InputError& e) {
    row.reason = without_place(e.what());
  } catch (const Interrupted&) {
    return;  // the caller checks the same flag
  }
}

void run_points(std::vector<PointRow>& points, Progress& progress) {
  RunOptions options;
  options.stop = &stop_requested();
  options.requests_done = &progress.requests();
  const auto run = [&](const tbb::blocked_range<std::size_t>& some) {
    for (std::size_t i = some.begin(); i != some.end() && !stop_requested(); ++i) {
      if (points[i].experiment) run_point(points[i], options);
      progress.run_done();
    }
  };
  tbb::parallel_for(tbb::blocked_range<std::size_t>(0, points.size(), 1), run, tbb::simple_partitioner());
}

std::string points_csv(const std::vector<PointRow>& points) {
  std::string csv = "id,group,real_tpot_ms,simulated_tpot_ms,diff_frac,basis\n";
  for (const PointRow& row : points) {
    if (!row.reason.empty()) continue;
    const PointExperiment& e = *row.experiment;
    csv += csv_line({row.id, e.group, fmt::format("{:.6f}", e.real_tpot_ms), fmt::format("{:.6f}", row.simulated_tpot_ms),
                     fmt::format("{:.6f}", row.diff_frac()), e.basis});
  }
  return csv;
}

std::string left_out_csv(const std::vector<PointRow>& points) {
  std::string csv = "id,reason\n";
  for (const PointRow& row : points)
    if (!row.reason.empty()) csv += csv_line({row.id, row.reason});
  return csv;
}

// Groups by name, then all points.
struct PointGroups {
  using Diffs = std::map<std::string, std::vector<double>>;
  std::string csv = "group,basis,rows,median_abs_diff_frac\n";
  std::vector<std::vector<std::string>> table;

  explicit PointGroups(const std::vector<PointRow>& points) {
    std::map<std::string, Diffs> groups;
    Diffs all;
    for (const PointRow& row : points) {
      if (!row.reason.empty()) continue;
      groups[row.experiment->group][row.experiment->basis].push_back(row.diff_frac());
      all[row.experiment->basis].push_back(row.diff_frac());
    }
    for (const auto& [group, diffs] : groups) add(group, diffs);
    add("all", all);
  }

 private:
  void add(const std::string& group, const Diffs& by_basis) {
    for (const auto& [basis, diffs] : by_basis) {
      std::vector<double> sizes;
      for (const double diff : diffs) sizes.push_back(std::abs(diff));
      const double middle = median(sizes);
      csv += csv_line({group, basis, std::to_string(diffs.size()), fmt::format("{:.6f}", middle)});
      table.push_back(
          {group, basis, std::to_string(diffs.size()), fmt::format("{:.1f}%", 100 * middle), fmt::format("{:+.1f}%", 100 * median(diffs))});
    }
  }
};

void print_points(const PointRows& rows, const std::vector<PointRow>& points, const PointGroups& groups, std::ostream& out) {
  std::map<std::string, std::size_t> reasons;
  std::size_t num_left_out = 0;
  for (const PointRow& row : points) {
    if (row.reason.empty()) continue;
    ++reasons[row.reason];
    ++num_left_out;
  }
  out << fmt::format("{} rows: {} simulated, {} left out\n", points.size(), points.size() - num_left_out, num_left_out);
  std::vector<std::vector<std::string>> table;
  for (const auto& [reason, count] : reasons) table.push_back({std::to_string(count), reason});
  if (!table.empty()) out << text_table({"rows", "left out because"}, table);
  out << "scheduler by engine:";
  for (const auto& [engine, scheduler] : rows.names().schedulers) out << fmt::format(" {} {}", engine, scheduler);
  out << "\n" << text_table({"group", "basis", "rows", "median |diff|", "median diff"}, groups.table);
}

}  // namespace

int validate_points(const PointsCommand& command, std::ostream& out, std::ostream& err) {
  const fs::path folder = command.out;
  PointRows rows(command.file, command.options, folder / "models");
  std::vector<PointRow> points = read_points(rows);
  const StopSignals signals;
  {
    Progress progress(err, points.size(), command.shows_progress && !command.quiet);
    run_points(points, progress);
  }
  if (stop_requested()) {
    err << "kvlab: stopped; no results of points are written\n";
    return 130;
  }
  const PointGroups groups(points);
  fs::create_directories(folder);
  replace_file(folder / "points.csv", points_csv(points));
  replace_file(folder / "groups.csv", groups.csv);
  replace_file(folder / "left_out.csv", left_out_csv(points));
  name_results(command.out);
  if (command.quiet) return 0;
  print_points(rows, points, groups, out);
  out << "wrote " << folder.string() << "\n";
  return 0;
}

}  // namespace kvlab
