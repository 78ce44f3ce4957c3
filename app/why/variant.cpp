#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/slo.h"
#include "app/runs/report/known_metrics.h"
#include "app/runs/sweep/experiment.h"
#include "app/runs/sweep/progress.h"
#include "app/why/why.h"
#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Without "file:line: " of the run's own resolved.yaml.
std::string reason_of(const std::exception& e) {
  std::string text = e.what();
  if (const std::size_t at = text.find("resolved.yaml"); at != std::string::npos)
    if (const std::size_t colon = text.find(": ", at); colon != std::string::npos) text = text.substr(colon + 2);
  if (text.starts_with("--set ") && text.find(": ") != std::string::npos) text = text.substr(text.find(": ") + 2);
  return text.substr(0, text.find('\n'));
}

// The highest that attains and at most two above it, without the present load. best: its row.
std::vector<Tried> loads_of(const fs::path& run, const Change& change, const WhyMetric& metric, const Tried& best) {
  const CsvTable table = read_csv(run / "search.csv");
  const auto value = [&](const std::vector<std::string>& row, const std::string& column) {
    return table.has(column) ? real_or(row[table.at(column)], kNone) : kNone;
  };
  auto rows = table.rows;
  std::sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) { return value(a, "value") > value(b, "value"); });
  std::vector<Tried> tried;
  for (std::size_t i = 1; i < rows.size(); ++i) {  // the first is the present load, or attains
    const bool attains = rows[i][table.at("attains")] == "1";
    const double load = value(rows[i], "value");
    Tried t = best;
    t.label = rows[i][table.at("varied")] == "concurrency" ? fmt::format("{:.0f} user{}", load, load == 1 ? "" : "s")
                                                           : fmt::format("{:.3g} requests/s", load);
    t.value = attains && !table.has(metric.column) ? best.value : value(rows[i], metric.column);
    t.attainment = value(rows[i], "slo_attainment_frac");
    t.attains = t.is_highest_load = attains;
    tried.push_back(std::move(t));
    if (attains) break;
  }
  constexpr std::size_t kMostShown = 3;
  if (tried.size() > kMostShown) tried.erase(tried.begin() + 1, tried.end() - 2);
  if (change.label == "a higher load" && tried.size() > 1) tried.erase(tried.begin(), tried.end() - 1);
  return tried;
}

Tried result_of(const fs::path& run, const Change& change, const WhyMetric& metric, double wanted) {
  const SummaryRow summary(run);
  Tried t{change.label, change.set, summary.number(metric.column), summary.number("slo_attainment_frac"), false, 0, false, ""};
  t.attains = metric.family == WhyFamily::kSearch ? std::isfinite(t.value) : t.attainment >= wanted;
  if (const double gpus = summary.number("gpus"); gpus > 0) t.gpus = static_cast<std::int64_t>(gpus);
  return t;
}

class ChangeList {
 public:
  ChangeList(const RunSettings& run, const SummaryRow& summary, const WhyMetric& metric, const CurrentLoad& load)
      : s_(run), summary_(summary), metric_(metric), load_(load) {}

  std::vector<Change> all() {
    add_gpus();
    add_kv();
    add_load();
    add_limits();
    add_routing();
    return changes_;
  }

 private:
  void add(std::string label, std::vector<std::string> set, bool finds_load = false) {
    changes_.push_back({std::move(label), std::move(set), finds_load});
  }

  [[nodiscard]] double number(const std::string& path, double absent) const { return real_or(s_.text(path), absent); }
  [[nodiscard]] std::string policy(const std::string& key) const { return name_in(node_at(s_.tree, key)); }

  void add_gpus() {
    if (s_.has("pools") && s_.tree["pools"].IsMap()) {
      for (const auto& pool : s_.tree["pools"]) {
        const std::string name = pool.first.Scalar(), path = fmt::format("pools.{}.replicas", name);
        const double now = number(path, 1);
        add(fmt::format("{:.0f} replicas of {} (now {:.0f})", now + 1, name, now), {fmt::format("{}={:.0f}", path, now + 1)});
      }
      return;
    }
    const double replicas = number("replicas", 1), tp = number("parallel.tp", 1);
    if (!s_.has("search.replicas")) add(fmt::format("{:.0f} replicas", replicas + 1), {fmt::format("replicas={:.0f}", replicas + 1)});
    if (s_.has("search.tp")) return;
    std::vector<std::string> set{fmt::format("parallel.tp={:.0f}", 2 * tp)};
    // Experts are spread over a replica's ranks.
    if (const double ep = number("parallel.ep", 1); ep > 1) set.push_back(fmt::format("parallel.ep={:.0f}", 2 * ep));
    add(fmt::format("tp {:.0f}", 2 * tp), set);
  }

  void add_kv() {
    const std::string kv = policy("kv_policy");
    if (kv == "full" || (kv.empty() && !s_.has("kv_policy"))) add("fp8 KV", {"kv_policy=fp8"});
    constexpr double kMostFrac = 0.95, kMore = 1.25;
    if (s_.has("memory.num_blocks")) {
      const double now = number("memory.num_blocks", 0);
      add(fmt::format("{:.0f} KV blocks (now {:.0f})", std::ceil(kMore * now), now),
          {fmt::format("memory.num_blocks={:.0f}", std::ceil(kMore * now))});
    } else if (const double now = number("memory.gpu_memory_frac", 0.9); now < kMostFrac) {
      add(fmt::format("{:.2g} of GPU memory (now {:.2g})", kMostFrac, now), {fmt::format("memory.gpu_memory_frac={:.2f}", kMostFrac)});
    }
    if (s_.text("prefix_caching") == "false") add("prefix caching", {"prefix_caching=true"});
  }

  void add_limits() {
    const std::string scheduler = policy("scheduler");
    if (scheduler.empty()) return;
    for (const char* key : {"budget_tokens", "chunk_tokens", "forward_tokens"}) {
      const std::string path = fmt::format("scheduler.{}.{}", scheduler, key);
      const double now = number(path, 0);
      if (now < 2) continue;
      for (const double factor : {2.0, 0.5})
        add(fmt::format("{:.0f} tokens per step (now {:.0f})", factor * now, now), {fmt::format("{}={:.0f}", path, factor * now)});
    }
    const std::string path = fmt::format("scheduler.{}.max_num_seqs", scheduler);
    if (const double now = number(path, 0); now >= 1)
      for (const double factor : {2.0, 0.5})
        if (factor * now >= 1)
          add(fmt::format("{:.0f} sequences per step (now {:.0f})", std::floor(factor * now), now),
              {fmt::format("{}={:.0f}", path, std::floor(factor * now))});
  }

  void add_routing() {
    const bool has_choice = number("replicas", 1) > 1;
    const std::string now = s_.has("router") ? policy("router") : policy("dispatcher");
    if (has_choice && !s_.has("pools") && (now.empty() || now == "round_robin"))
      add("dispatcher least_outstanding", {fmt::format("{}=least_outstanding", s_.has("router") ? "router" : "dispatcher")});
  }

  // From a file's `arrival` or a generator's; 0: open loop.
  [[nodiscard]] double users() const {
    for (const char* path : {"trace.arrival.closed_loop.concurrency", "trace.generate.arrival.closed_loop.concurrency"})
      if (const double users = number(path, 0); users > 0) return users;
    return 0;
  }

  // Half the metric's value, for runs without an SLO; "" without a metric.
  [[nodiscard]] std::string half() const {
    const std::vector<std::string> known = latency_limit_columns();
    const double value = summary_.number(metric_.column);
    const bool is_known = std::find(known.begin(), known.end(), metric_.column) != known.end();
    return is_known && value > 0 ? fmt::format(", {}: {:.6g}", metric_.column, value / 2) : "";
  }

  // Higher if the SLO is attained.
  void add_load() {
    const std::string limit = s_.has("slo") ? "" : half();
    if (s_.has("search") || (limit.empty() && !s_.has("slo"))) return;
    constexpr double kLeastFrac = 0.125, kMostFrac = 4;
    const double from = load_.attains ? 1 : kLeastFrac, to = load_.attains ? kMostFrac : 1;
    const auto search = [&](const std::string& range) {
      add(load_.attains ? "a higher load" : "a lower load", {fmt::format("search={{{}{}}}", range, limit)}, true);
    };
    if (const double now = users(); now == 1 && !load_.attains) return;
    if (const double now = users(); now > 0)
      search(fmt::format("concurrency: [{:.0f}, {:.0f}]", load_.attains ? now : 1.0, to * now));
    else if (load_.rate_per_s > 0 && number("load_frac", 0) == 0)
      search(fmt::format("rate: [{:.6g}, {:.6g}], tolerance_frac: 0.05", from * load_.rate_per_s, to * load_.rate_per_s));
  }

  const RunSettings& s_;
  const SummaryRow& summary_;
  const WhyMetric& metric_;
  CurrentLoad load_;
  std::vector<Change> changes_;
};

}  // namespace

ScratchRuns::ScratchRuns() {
  static int number = 0;
  folder_ = fs::temp_directory_path() / fmt::format("kvlab_why_{}_{}", ::getpid(), ++number);
  fs::create_directories(folder_);
}

ScratchRuns::~ScratchRuns() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

fs::path ScratchRuns::run(const fs::path& resolved, const std::vector<std::string>& set) {
  Experiment experiment = load_experiment(resolved.string(), set);
  if (experiment.runs.size() != 1) throw InputError(resolved.string() + ": is no single run");
  experiment.runs[0].id = fmt::format("v{}", ++count_);
  RunKinds kinds;
  RunOptions options;
  options.stop = &stop_requested();
  execute_run(kinds, {experiment, experiment.runs[0], folder_, {}, [] {}}, options);
  return folder_ / experiment.runs[0].id;
}

std::vector<Tried> try_changes(const fs::path& run, const std::vector<Change>& changes, const WhyMetric& metric, double wanted,
                               double within_s, std::vector<std::string>& skipped) {
  const auto began = std::chrono::steady_clock::now();
  ScratchRuns scratch;
  std::vector<Tried> all;
  for (const Change& change : changes) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
    if (passed.count() > within_s) {
      skipped.push_back(change.label);
      continue;
    }
    try {
      const fs::path made = scratch.run(run / "resolved.yaml", change.set);
      const Tried one = result_of(made, change, metric, wanted);
      if (change.finds_load)
        for (Tried& load : loads_of(made, change, metric, one)) all.push_back(std::move(load));
      else
        all.push_back(one);
    } catch (const InputError& e) {
      all.push_back({change.label, change.set, kNone, kNone, false, 0, false, reason_of(e)});
    }
  }
  return all;
}

void sort_by_effect(std::vector<Tried>& tried, const WhyMetric& metric) {
  const auto is_none = [](const Tried& t) { return !std::isfinite(t.value); };
  std::stable_sort(tried.begin(), tried.end(), [&](const Tried& a, const Tried& b) {
    if (is_none(a) || is_none(b)) return !is_none(a) && is_none(b);
    return metric.rises() ? a.value > b.value : a.value < b.value;
  });
}

std::vector<Change> changes_of(const RunSettings& settings, const SummaryRow& summary, const WhyMetric& metric, const CurrentLoad& load) {
  return ChangeList(settings, summary, metric, load).all();
}

}  // namespace kvlab
