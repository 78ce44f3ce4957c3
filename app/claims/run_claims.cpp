#include "app/claims/run_claims.h"

#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <thread>

#include "app/runs/sweep/stop_signals.h"
#include "app/runs/sweep/sweep.h"
#include "base/error.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

struct Task {
  const Claim* claim = nullptr;
  const ClaimRun* run = nullptr;
  fs::path folder;
  std::string error;
  int status = 0;

  void execute(bool force) {
    try {
      SweepOptions options;
      options.jobs = 1;
      options.out = folder.string();
      options.quiet = true;
      options.force = force;
      options.names_results = false;
      Experiment experiment = claim->experiment(*run);
      std::ostringstream out, err;
      status = run_sweep(std::move(experiment), options, out, err);
      error = status == 0 ? "" : err.str();
    } catch (const InputError& e) {
      status = 2;
      error = run->placed(e.what());
    } catch (const std::exception& e) {
      status = 1;
      error = e.what();
    }
  }
};

void add_once(std::vector<std::string>& remarks, const std::string& remark) {
  if (std::find(remarks.begin(), remarks.end(), remark) == remarks.end()) remarks.push_back(remark);
}

void add_not_served(const Task& task, std::vector<std::string>& remarks) {
  const nlohmann::json manifest = nlohmann::json::parse(read_if_there(task.folder / "manifest.json"), nullptr, false);
  if (!manifest.is_object() || !manifest.contains("runs")) return;
  for (const auto& run : manifest["runs"])
    if (run.contains("not_served")) add_once(remarks, task.run->name + ": " + run["not_served"].get<std::string>());
}

// nullopt if missing.
std::optional<double> percent_of(const CsvTable& table, const char* column) {
  if (!table.has(column) || table.rows.empty()) return {};
  double sum = 0;
  for (const auto& row : table.rows) {
    double value = 0;
    if (!parse_real(row[table.at(column)], value)) return {};
    sum += value;
  }
  return 100 * sum / static_cast<double>(table.rows.size());
}

void add_costs(const Task& task, const CsvTable& table, std::vector<std::string>& remarks) {
  if (const auto share = percent_of(table, "extrapolated_frac"))
    add_once(remarks, fmt::format("step times: {:.0f} % by the roofline or extrapolated", *share));
  if (const auto share = percent_of(table, "step_policy_frac"); share && *share >= 10)
    remarks.push_back(fmt::format("{}: {:.0f} % of step time are operations of the KV policy", task.run->name, *share));
}

ClaimResult measure(const Claim& claim, const std::vector<const Task*>& tasks) {
  ClaimResult result;
  result.claim = claim;
  try {
    Measure::Tables tables;
    for (const Task* task : tasks) {
      if (task->status != 0) {
        result.status = task->status;
        result.error = task->error;
        return result;
      }
      const CsvTable& table = tables[task->run->name] = read_csv(task->folder / "summary.csv");
      add_not_served(*task, result.remarks);
      add_costs(*task, table, result.remarks);
    }
    result.ours = claim.measure.value(tables);
  } catch (const InputError& e) {
    result.status = 2;
    result.error = e.what();
  }
  return result;
}

std::vector<Task> tasks_of(const std::vector<Claim>& claims, const fs::path& folder) {
  std::vector<Task> tasks;
  for (const Claim& claim : claims)
    for (const ClaimRun& run : claim.runs) tasks.push_back({&claim, &run, folder / claim.name / run.name, "", 0});
  return tasks;
}

// Each run has one thread.
void execute_all(std::vector<Task>& tasks, const ClaimOptions& options, std::ostream& err) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int jobs = std::min(options.jobs > 0 ? options.jobs : cores, static_cast<int>(tasks.size()));
  std::atomic<std::size_t> next{0}, done{0};
  std::mutex report;
  const auto work = [&](int) {
    for (std::size_t k = next++; k < tasks.size() && !stop_requested(); k = next++) {
      tasks[k].execute(options.force);
      const std::lock_guard lock(report);
      err << fmt::format("kvlab: run {} of {}: {} {}\n", ++done, tasks.size(), tasks[k].claim->name, tasks[k].run->name) << std::flush;
    }
  };
  const tbb::global_control threads(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(jobs));
  tbb::task_arena arena(jobs, 1);
  arena.execute([&] { tbb::parallel_for(0, jobs, 1, work); });
}

}  // namespace

std::vector<ClaimResult> run_claims(const std::vector<Claim>& claims, const ClaimOptions& options, std::ostream& err) {
  const StopSignals signals;
  std::vector<Task> tasks = tasks_of(claims, options.folder);
  for (Task& task : tasks) task.status = 130;  // until done
  if (!tasks.empty()) execute_all(tasks, options, err);
  std::vector<ClaimResult> results;
  for (const Claim& claim : claims) {
    std::vector<const Task*> own;
    for (const Task& task : tasks)
      if (task.claim == &claim) own.push_back(&task);
    results.push_back(measure(claim, own));
  }
  return results;
}

}  // namespace kvlab
