#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <initializer_list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <thread>

#include "app/claims/claim.h"
#include "app/runs/sweep/progress.h"
#include "app/runs/sweep/sweep.h"
#include "base/csv.h"
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

std::string ours_of(const ClaimResult& r) { return r.ours ? figure_text(*r.ours, r.claim.published.unit) : ""; }
std::string verdict_of(const ClaimResult& r) { return r.ours ? name_of(kVerdicts, r.verdict()) : "error"; }

constexpr std::initializer_list<Named<Criterion>> kMeanings{{"the direction counts", Criterion::kDirection},
                                                            {"within 2 times counts", Criterion::kFactor},
                                                            {"within 10 % counts", Criterion::kNumber}};

std::string listed(const char* title, const std::vector<std::string>& items) {
  return items.empty() ? "" : fmt::format("  {:<12} {}\n", title, join(items, "; "));
}

std::string tally(const std::vector<ClaimResult>& results) {
  const auto count = [&](const char* verdict) {
    return std::count_if(results.begin(), results.end(), [&](const ClaimResult& r) { return verdict_of(r) == verdict; });
  };
  const auto errors = count("error");
  return fmt::format("{} claims: {} reproduced, {} in direction, {} not reproduced{}", results.size(), count("reproduced"),
                     count("direction"), count("not_reproduced"), errors > 0 ? fmt::format(", {} with an error", errors) : "");
}

// Escapes for Markdown tables.
std::string cell(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string item(const char* title, const std::string& text) { return text.empty() ? "" : fmt::format("- {}: {}\n", title, text); }

std::string section(const ClaimResult& r) {
  const Claim& c = r.claim;
  std::string text = fmt::format("\n### {}\n\n{} against {}. {}\n\n", c.name, c.system, c.baseline, c.paper);
  text += item("published", fmt::format("{}: {} ({})", figure_text(c.published), c.published.text, c.published.where));
  text +=
      item("ours", r.ours ? fmt::format("{} = `{}`; {}: **{}**", ours_of(r), c.measure.text, name_of(kMeanings, c.counts), verdict_of(r))
                          : r.error);
  text += item("setting of the paper", c.setting) + item("recalled", join(c.recalled, "; ")) + item("assumed", join(c.assumed, "; "));
  return text + item("not matched", c.note) + item("remarks of the runs", join(r.remarks, "; "));
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

std::string claim_as_text(const ClaimResult& r) {
  const Claim& c = r.claim;
  std::string text = fmt::format("{}: {} against {}\n", c.name, c.system, c.baseline);
  text += fmt::format("  {:<12} {}, {} ({}; {})\n", "published", figure_text(c.published), c.published.text, c.paper, c.published.where);
  if (!r.ours) return text + fmt::format("  {:<12} {}\n", "error", r.error);
  text += fmt::format("  {:<12} {} = {}\n", "ours", ours_of(r), c.measure.text);
  text += fmt::format("  {:<12} {} ({})\n", "verdict", verdict_of(r), name_of(kMeanings, c.counts));
  text += listed("recalled", c.recalled) + listed("assumed", c.assumed);
  if (!c.note.empty()) text += fmt::format("  {:<12} {}\n", "not matched", c.note);
  return text + listed("remarks", r.remarks);
}

std::string claims_as_table(const std::vector<ClaimResult>& results) {
  std::vector<std::vector<std::string>> rows;
  for (const ClaimResult& r : results)
    rows.push_back({r.claim.name, r.claim.system, figure_text(r.claim.published), ours_of(r), verdict_of(r)});
  return text_table({"claim", "system", "published", "ours", "verdict"}, rows) + tally(results) + "\n";
}

std::string claims_as_json(const std::vector<ClaimResult>& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ClaimResult& r : results) {
    if (!r.ours) continue;
    list.push_back({{"name", r.claim.name},
                    {"system", r.claim.system},
                    {"published", r.claim.published.value},
                    {"ours", *r.ours},
                    {"verdict", name_of(kVerdicts, r.verdict())}});
  }
  return list.dump(2) + "\n";
}

std::string claims_as_csv(const std::vector<ClaimResult>& results) {
  std::string text = csv_line({"name", "system", "published", "published_to", "no_effect", "unit", "ours", "counts", "verdict"});
  for (const ClaimResult& r : results) {
    const Published& p = r.claim.published;
    text += csv_line({r.claim.name, r.claim.system, number_text(p.value), number_text(p.to), p.no_effect ? number_text(*p.no_effect) : "",
                      p.unit, r.ours ? fmt::format("{:.6g}", *r.ours) : "", name_of(kCriteria, r.claim.counts), verdict_of(r)});
  }
  return text;
}

std::string claims_as_page(const std::vector<ClaimResult>& results, const std::string& command) {
  std::string text = fmt::format(
      "# Published claims, and what the simulator gives\n\nMade by `{}`; [claims.md](../claims.md) says how a "
      "claim is written and judged.\n\n{}.\n\n![Published figures and ours](figures/claims.png)\n\n",
      command, tally(results));
  text += "| claim | system | against | published | ours | verdict |\n|---|---|---|---|---|---|\n";
  for (const ClaimResult& r : results) {
    const Claim& c = r.claim;
    text += fmt::format("| [{0}](#{0}) | {1} | {2} | {3} | {4} | {5} |\n", c.name, cell(c.system), cell(c.baseline),
                        cell(figure_text(c.published) + " " + c.published.text), cell(ours_of(r)), verdict_of(r));
  }
  for (const ClaimResult& r : results) text += section(r);
  return text;
}

}  // namespace kvlab
