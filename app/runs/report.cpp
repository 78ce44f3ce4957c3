#include "app/runs/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "app/results/code_version.h"
#include "app/runs/accuracy_report.h"
#include "base/csv.h"
#include "base/json_text.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string run_title(const Experiment& experiment, const RunSpec& run) {
  std::string title;
  for (std::size_t i = 0; i < experiment.axes.size(); ++i) {
    if (!run.labels[i].empty()) title += fmt::format("{}={} ", experiment.axes[i], run.labels[i]);
  }
  return title + fmt::format("seed={}", run.seed);
}

std::vector<std::size_t> complete_runs(const std::vector<RunState>& states) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < states.size(); ++i)
    if (states[i].outcome == RunState::kDone || states[i].outcome == RunState::kUnchanged) places.push_back(i);
  return places;
}

Experiment complete_part(const Experiment& experiment, const std::vector<RunState>& states) {
  Experiment part = experiment;
  part.runs.clear();
  for (const std::size_t i : complete_runs(states)) part.runs.push_back(experiment.runs[i]);
  return part;
}

void report_failures(const Experiment& experiment, const std::vector<RunState>& states, std::ostream& err) {
  constexpr std::size_t kNamed = 5;
  std::vector<std::string> failed;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i].outcome == RunState::kBadInput || states[i].outcome == RunState::kFailed)
      failed.push_back(run_title(experiment, experiment.runs[i]));
  }
  if (failed.empty()) return;
  const std::size_t named = std::min(failed.size(), kNamed);
  const std::string more = failed.size() > named ? fmt::format("; and {} more", failed.size() - named) : "";
  err << fmt::format("kvlab: {} of {} runs failed ({}{}); tables and figures are of the others\n", failed.size(), states.size(),
                     fmt::join(failed.begin(), failed.begin() + static_cast<std::ptrdiff_t>(named), "; "), more);
}

namespace {

Json manifest_of_run(const ResultsFolder& folder, const std::string& id) {
  Json m = read_json_object<Json>(folder.runs() / id / "manifest.json");
  return m.is_null() ? Json::object() : m;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
                     parts.tm_min, parts.tm_sec);
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

const char* outcome_text(RunState::Outcome outcome) {
  switch (outcome) {
    case RunState::kUnchanged:
      return "unchanged";
    case RunState::kDone:
      return "done";
    case RunState::kBadInput:
    case RunState::kFailed:
      return "failed";
    default:
      return "not run";
  }
}

// Metrics of the final table, where the experiment has them.
const std::vector<std::string> kTableColumns = {
    "ttft_p50_ms",    "ttft_p99_ms",       "tpot_p50_ms",    "e2e_p50_ms",      "requests_per_s",    "output_tokens_per_s",
    "goodput_per_s",  "search_rate_per_s", "preemptions",    "prefix_hit_frac", "kv_used_mean_frac", "hit_frac",
    "token_hit_frac", "attention_mass",    "output_rel_err", "needle_kept",     "attended_tokens",   "resident_bytes_frac"};
constexpr std::size_t kMaxTableRows = 40;

// Positions of the columns to show: axes and seed where they vary, then metrics that have values.
std::vector<std::size_t> shown_columns(const CsvTable& summary, std::size_t num_axes) {
  const auto varies = [&](std::size_t c) {
    return std::any_of(summary.rows.begin(), summary.rows.end(), [&](const auto& row) { return row[c] != summary.rows[0][c]; });
  };
  const auto has_value = [&](std::size_t c) {
    return std::any_of(summary.rows.begin(), summary.rows.end(), [&](const auto& row) { return !row[c].empty(); });
  };
  std::vector<std::size_t> shown{0};
  const bool is_replay = summary.has("attention_mass");
  if (is_replay) shown.push_back(summary.at("recipe"));  // which says more than the axes it may be written as
  for (std::size_t c = 1; c <= num_axes + 1; ++c) {
    if (is_replay && (summary.columns[c] == "kv_policy" || summary.columns[c] == "kv_policy.recipe")) continue;
    if (varies(c) || summary.rows[0][c].find(" seed") != std::string::npos) shown.push_back(c);
  }
  for (const std::string& column : kTableColumns) {
    if (summary.has(column) && has_value(summary.at(column))) shown.push_back(summary.at(column));
  }
  return shown;
}

// True where these rows have equal fields from this column on.
bool are_equal_from(std::size_t column, const CsvTable& table, const std::vector<std::size_t>& rows) {
  const auto from = static_cast<std::ptrdiff_t>(column);
  return std::all_of(rows.begin(), rows.end(), [&](std::size_t r) {
    return std::equal(table.rows[r].begin() + from, table.rows[r].end(), table.rows[rows[0]].begin() + from);
  });
}

// One row per configuration: the mean over its seeds, and in place of the seed their number.
CsvTable mean_over_seeds(const CsvTable& summary, std::size_t num_axes) {
  CsvTable means{summary.file, summary.columns, {}, {}};
  std::map<std::vector<std::string>, std::vector<std::size_t>> groups;
  std::vector<std::vector<std::string>> order;
  for (std::size_t r = 0; r < summary.rows.size(); ++r) {
    const std::vector<std::string> key(summary.rows[r].begin() + 1, summary.rows[r].begin() + 1 + static_cast<std::ptrdiff_t>(num_axes));
    if (!groups.contains(key)) order.push_back(key);
    groups[key].push_back(r);
  }
  for (const auto& key : order) {
    const std::vector<std::size_t>& rows = groups[key];
    std::vector<std::string> mean = summary.rows[rows[0]];
    const bool are_alike = rows.size() > 1 && are_equal_from(num_axes + 2, summary, rows);
    mean[num_axes + 1] = fmt::format("{} seed{}{}", rows.size(), rows.size() == 1 ? "" : "s", are_alike ? ", alike: n = 1" : "");
    if (are_alike) {
      means.rows.push_back(std::move(mean));
      continue;
    }
    for (std::size_t c = num_axes + 2; c < mean.size(); ++c) {
      double sum = 0, value = 0;
      bool all = true, some = false;
      for (const std::size_t r : rows) {
        const bool is_number = parse_real(summary.rows[r][c], value);
        all = all && is_number, some = some || is_number;
        sum += value;
      }
      // Of seeds of which some have no value there is no mean.
      if (some) mean[c] = all ? number_text(sum / static_cast<double>(rows.size())) : "";
    }
    means.rows.push_back(std::move(mean));
  }
  return means;
}

// The last part of an axis's path, where no other column is called that.
std::string short_title(const std::vector<std::string>& columns, std::size_t at) {
  const auto last_part = [](const std::string& path) { return path.substr(path.rfind('.') + 1); };
  const std::string title = last_part(columns[at]);
  const auto same = std::count_if(columns.begin(), columns.end(), [&](const std::string& other) { return last_part(other) == title; });
  return same == 1 ? title : columns[at];
}

void print_table(const CsvTable& summary, std::size_t num_axes, std::ostream& out) {
  const std::vector<std::size_t> shown = shown_columns(summary, num_axes);
  std::vector<std::string> header;
  for (const std::size_t c : shown) header.push_back(short_title(summary.columns, c));
  std::vector<std::vector<std::string>> rows;
  for (std::size_t r = 0; r < std::min(summary.rows.size(), kMaxTableRows); ++r) {
    std::vector<std::string> row;
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const std::string& field = summary.rows[r][shown[i]];
      row.push_back(shown[i] <= num_axes + 1 ? field : short_number(field));
    }
    rows.push_back(std::move(row));
  }
  out << text_table(header, rows);
  if (summary.rows.size() > kMaxTableRows) out << fmt::format("... {} more runs in summary.csv\n", summary.rows.size() - kMaxTableRows);
}

// "21.6 to 25.2": the range of a share over rows, in percent.
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

// Remarks of the runs, each text once.
void print_remarks(const CsvTable& summary, const ResultsFolder& folder, std::ostream& out) {
  struct Remark {
    std::string kind, text, first_run;
    std::size_t runs = 0;
  };
  std::vector<Remark> remarks;
  for (const auto& row : summary.rows) {
    const Json m = manifest_of_run(folder, row[0]);
    for (const auto& [key, kind] : {std::pair{"note", "note"}, {"skipped", "skipped"}, {"not_served", "not served"}}) {
      if (!m.contains(key)) continue;
      const std::string text = m[key].get<std::string>();
      const auto is_same = [&, kind = kind](const Remark& r) { return r.kind == kind && r.text == text; };
      auto at = std::find_if(remarks.begin(), remarks.end(), is_same);
      if (at == remarks.end()) at = remarks.insert(at, Remark{kind, text, row[0]});
      ++at->runs;
    }
  }
  for (const Remark& r : remarks) {
    const std::string which = r.runs == 1 ? "run " + r.first_run : fmt::format("{} runs from {}", r.runs, r.first_run);
    out << fmt::format("{} ({}): {}\n", r.kind, which, r.text);
  }
}

// The schedulers' limits in force, each pair once with its runs.
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

const std::string kMeasured = "step times measured by the engine; ";

// How far to trust the runs: one line per source of step times and of the block count, with the range over its runs. Each
// run's own label is in manifest.json.
void print_labels(const CsvTable& summary, const ResultsFolder& folder, std::ostream& out) {
  std::map<std::string, CsvTable> by_source;
  print_remarks(summary, folder, out);
  print_limits(summary, out);
  for (const auto& row : summary.rows) {
    const Json m = manifest_of_run(folder, row[0]);
    if (!m.contains("credibility")) continue;
    const bool is_engine = m.value("host", "") == "engine";
    const std::string source =
        is_engine ? kMeasured + fmt::format("KV blocks {}; {}", row[summary.at("kv_blocks_source")], m.value("served_model", ""))
                  : fmt::format("KV blocks {}; {}", row[summary.at("kv_blocks_source")], m.value("cost_source", ""));
    CsvTable& group = by_source[source];
    group.columns = summary.columns;
    group.rows.push_back(row);
  }
  for (const auto& [source, group] : by_source) {
    const std::string which = by_source.size() == 1    ? ""
                              : group.rows.size() == 1 ? " of run " + group.rows[0][0]
                                                       : fmt::format(" of {} runs from {}", group.rows.size(), group.rows[0][0]);
    if (source.starts_with(kMeasured)) {
      out << fmt::format("credibility{}: {}; overload {} % of time\n", which, source, percent_range(group, "overload_frac"));
      continue;
    }
    out << fmt::format("credibility{}: step time {} % measured, {} % interpolated, {} % extrapolated; overload {} % of time; {}\n", which,
                       percent_range(group, "inside_frac"), percent_range(group, "interpolated_frac"),
                       percent_range(group, "extrapolated_frac"), percent_range(group, "overload_frac"), source);
  }
}

}  // namespace

void write_manifest(const Experiment& experiment, const std::vector<RunState>& states, const InputFiles& inputs, ResultsFolder& folder,
                    double wall_s) {
  Json runs = Json::array();
  for (std::size_t i = 0; i < experiment.runs.size(); ++i) {
    const bool is_there = states[i].outcome == RunState::kDone || states[i].outcome == RunState::kUnchanged;
    Json run = is_there ? manifest_of_run(folder, experiment.runs[i].id) : Json{{"run", experiment.runs[i].id}};
    for (const char* own : {"kvlab_run", "code", "inputs", "files"}) run.erase(own);  // of the run's own manifest
    run["axes"] = Json::object();
    for (std::size_t a = 0; a < experiment.axes.size(); ++a) run["axes"][experiment.axes[a]] = experiment.runs[i].labels[a];
    run["state"] = outcome_text(states[i].outcome);
    if (!states[i].message.empty()) run["error"] = states[i].message;
    runs.push_back(std::move(run));
  }
  const Json m = {{"program", "kvlab " + program_version()},
                  {"code", code_version({}).at("core")},
                  {"experiment", experiment.name},
                  {"file", experiment.file},
                  {"set", experiment.overrides},
                  {"seeds", experiment.seeds()},
                  {"axes", experiment.axes},
                  {"inputs", inputs.all()},
                  {"host", {{"name", host_name()}, {"cores", std::thread::hardware_concurrency()}}},
                  {"finished", utc_now()},
                  {"wall_s", wall_s},
                  {"runs", runs}};
  folder.replace_texts({{"resolved.yaml", experiment.resolved_in(folder.path())}, {"manifest.json", m.dump(2) + "\n"}});
}

void print_report(const Experiment& experiment, const std::vector<RunState>& states, const ResultsFolder& folder, std::ostream& out) {
  const auto unchanged = std::count_if(states.begin(), states.end(), [](const RunState& s) { return s.outcome == RunState::kUnchanged; });
  if (unchanged > 0)
    out << fmt::format("{} of {} runs were there already, with the same inputs (--force does them again)\n", unchanged, states.size());
  if (!fs::exists(folder.path() / "summary.csv")) return;
  const CsvTable summary = read_csv(folder.path() / "summary.csv");
  if (summary.has("exact_match_frac")) return print_accuracy(summary, out);
  const bool has_seeds = experiment.seeds().size() > 1;
  print_table(has_seeds ? mean_over_seeds(summary, experiment.axes.size()) : summary, experiment.axes.size(), out);
  print_labels(summary, folder, out);
}

}  // namespace kvlab
