#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <set>
#include <utility>

#include "app/runs/kinds/simulation.h"
#include "app/runs/plan/serving_plan.h"
#include "app/runs/report/report.h"
#include "app/why/why.h"
#include "base/csv.h"
#include "base/text.h"

namespace kvlab {

namespace {

// "21.6 to 25.2": over rows, in percent.
std::string percent_range(const CsvTable& summary, const char* column) {
  double lo = 1, hi = 0;
  for (const auto& row : summary.rows) {
    double value = 0;
    if (!parse_real(row[summary.at(column)], value)) continue;
    lo = std::min(lo, value);
    hi = std::max(hi, value);
  }
  const std::string from = fmt::format("{:.1f}", 100 * lo), to = fmt::format("{:.1f}", 100 * hi);
  return lo > hi ? "-" : from == to ? from : from + " to " + to;
}

// Each pair once, with its runs.
void print_limits(const CsvTable& summary, std::ostream& out) {
  if (!summary.has("max_step_tokens")) return;
  std::vector<std::pair<std::string, std::vector<std::string>>> limits;
  for (const auto& row : summary.rows) {
    const std::string &tokens = row[summary.at("max_step_tokens")], &seqs = row[summary.at("max_step_seqs")];
    const std::string text = fmt::format("{} tokens, {} sequences", tokens.empty() ? "any" : tokens, seqs.empty() ? "any" : seqs);
    auto at = std::find_if(limits.begin(), limits.end(), [&](const auto& l) { return l.first == text; });
    if (at == limits.end()) at = limits.insert(at, {text, {}});
    at->second.push_back(row[0]);
  }
  std::string line;
  for (const auto& [text, runs] : limits) {
    line += (line.empty() ? "" : "; ") + text;
    if (limits.size() > 1) line += runs.size() == 1 ? " (run " + runs[0] + ")" : fmt::format(" ({} runs from {})", runs.size(), runs[0]);
  }
  if (!line.empty()) out << "most per step: " << line << "\n";
}

// If compared schedulers have no common token limit. Unlimited ones do not count.
void print_unequal_budgets(const CsvTable& summary, std::ostream& out) {
  if (!summary.has("max_step_tokens") || !summary.has("scheduler")) return;
  std::map<std::string, std::set<std::string>> budgets;  // by scheduler
  for (const auto& row : summary.rows) {
    const std::string& limit = row[summary.at("max_step_tokens")];
    if (!limit.empty()) budgets[row[summary.at("scheduler")]].insert(limit);
  }
  if (budgets.size() < 2) return;
  std::set<std::string> common = budgets.begin()->second;
  std::vector<std::string> texts;
  for (const auto& [scheduler, limits] : budgets) {
    std::erase_if(common, [&, &own = limits](const std::string& limit) { return !own.contains(limit); });
    texts.push_back(scheduler + " " + join({limits.begin(), limits.end()}, ", "));
  }
  if (common.empty())
    out << fmt::format(
        "note: the schedulers differ in their most tokens per step as well ({}), so the differences are not of the policies alone: give "
        "them one limit (budget_tokens, of sglang chunk_tokens)\n",
        join(texts, "; "));
}

const std::string kMeasured = "step times measured by the engine; ";

// By source of step times and block count.
void print_credibility(const SweepReport& report, std::ostream& out) {
  struct Group {
    CsvTable rows;
    std::vector<nlohmann::ordered_json> step_times;
  };
  JoinedTexts sources;
  std::map<std::size_t, Group> groups;  // by source
  std::set<std::string> seen;
  for (const auto& row : report.summary.rows) {
    const nlohmann::ordered_json m = manifest_of_run(report.folder, row[0]);
    if (!m.contains("credibility") || !seen.insert(row[0]).second) continue;
    const std::string blocks = fmt::format("KV blocks {}; ", row[report.summary.at("kv_blocks_source")]);
    const std::string source =
        m.contains("served_model") ? kMeasured + blocks + m.value("served_model", "") : blocks + m.value("cost_source", "");
    Group& group = groups[sources.add(source)];
    group.rows.columns = report.summary.columns;
    group.rows.rows.push_back(row);
    if (m.contains("step_time_by_part")) group.step_times.push_back(m["step_time_by_part"]);
  }
  for (const auto& [place, group] : groups) {
    const CsvTable& rows = group.rows;
    std::vector<std::string> runs;
    for (const auto& row : rows.rows) runs.push_back(row[0]);
    const std::string source = sources.text(place), which = groups.size() == 1 ? "" : " of " + runs_text(runs, seen.size());
    if (source.starts_with(kMeasured)) {
      out << fmt::format("credibility{}: {}; overload {} % of time\n", which, source, percent_range(rows, "overload_frac"));
      continue;
    }
    out << fmt::format("credibility{}: step time {} % measured, {} % interpolated, {} % extrapolated; overload {} % of time; {}\n", which,
                       percent_range(rows, "inside_frac"), percent_range(rows, "interpolated_frac"),
                       percent_range(rows, "extrapolated_frac"), percent_range(rows, "overload_frac"), source);
    if (const std::string line = step_time_line(group.step_times); !line.empty()) out << line << "\n";
  }
}

}  // namespace

std::vector<std::string> Simulation::metrics() const {
  return {
      "search_rate_per_s",     "search_concurrency", "search_replicas",     "search_tp",   "goodput_per_s",  "slo_attainment_frac",
      "binding_limit",         "waits_for",          "ttft_p50_ms",         "ttft_p99_ms", "tpot_p50_ms",    "tpot_p99_ms",
      "attention_mass",        "output_rel_err",     "resident_bytes_frac", "qoe_mean",    "gpus",           "dollars_per_million_tokens",
      "output_tokens_per_s",   "prefix_hit_frac",    "kv_blocks",           "e2e_p50_ms",  "requests_per_s", "requests_per_s_per_gpu",
      "goodput_per_s_per_gpu", "preemptions",        "kv_used_mean_frac"};
}

void Simulation::report(const SweepReport& report, std::ostream& out) const {
  RunKind::report(report, out);
  print_limits(report.summary, out);
  print_unequal_budgets(report.summary, out);
  print_credibility(report, out);
  print_short_explanation(report.folder.path(), out);
}

}  // namespace kvlab
