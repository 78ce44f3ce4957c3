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

Json manifest_of_run(const ResultsFolder& folder, const std::string& id) {
  Json m = read_json_object<Json>(folder.runs() / id / "manifest.json");
  return m.is_null() ? Json::object() : m;
}

namespace {

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

constexpr std::size_t kMaxTableRows = 40;

// Positions of the columns to show: axes and seed where they vary, then metrics that have values.
std::vector<std::size_t> shown_columns(const CsvTable& summary, std::size_t num_axes, const std::vector<std::string>& metrics) {
  const auto varies = [&](std::size_t c) {
    return std::any_of(summary.rows.begin(), summary.rows.end(), [&](const auto& row) { return row[c] != summary.rows[0][c]; });
  };
  const auto has_value = [&](std::size_t c) {
    return std::any_of(summary.rows.begin(), summary.rows.end(), [&](const auto& row) { return !row[c].empty(); });
  };
  std::vector<std::size_t> shown{0};
  const bool has_recipe = summary.has("recipe");
  if (has_recipe) shown.push_back(summary.at("recipe"));  // it says more than the axes it may be written as
  for (std::size_t c = 1; c <= num_axes + 1; ++c) {
    if (has_recipe && (summary.columns[c] == "kv_policy" || summary.columns[c] == "kv_policy.recipe")) continue;
    if (varies(c) || summary.rows[0][c].find(" seed") != std::string::npos) shown.push_back(c);
  }
  for (const std::string& column : metrics) {
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
      // There is no mean if some of the seeds have no value.
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

}  // namespace

void print_table(const SweepReport& report, const std::vector<std::string>& metrics, std::ostream& out) {
  const std::size_t num_axes = report.num_axes;
  const CsvTable summary = report.has_seeds ? mean_over_seeds(report.summary, num_axes) : report.summary;
  const std::vector<std::size_t> shown = shown_columns(summary, num_axes, metrics);
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

void print_remarks(const SweepReport& report, std::ostream& out) {
  struct Remark {
    std::string kind, text, first_run;
    std::size_t runs = 0;
  };
  std::vector<Remark> remarks;
  for (const auto& row : report.summary.rows) {
    const Json m = manifest_of_run(report.folder, row[0]);
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

namespace {

constexpr const char* kOwnEntries[] = {"kvlab_run", "code", "inputs", "files"};  // of a run's own manifest alone

// Of a run in another results folder.
Json entry_of(const ViewRow& row, const View& view) {
  Json run = read_json_object<Json>(row.run / "manifest.json");
  for (const char* own : kOwnEntries) run.erase(own);
  for (std::size_t a = 0; a < view.axes.size(); ++a) run["axes"][view.axes[a]] = row.labels[a];
  run["state"] = "included";
  return run;
}

}  // namespace

void write_manifest(const Experiment& experiment, const std::vector<RunState>& states, const InputFiles& inputs, const View& view,
                    ResultsFolder& folder, double wall_s) {
  Json runs = Json::array();
  for (std::size_t i = 0; i < experiment.runs.size(); ++i) {
    const bool is_there = states[i].outcome == RunState::kDone || states[i].outcome == RunState::kUnchanged;
    Json run = is_there ? manifest_of_run(folder, experiment.runs[i].id) : Json{{"run", experiment.runs[i].id}};
    for (const char* own : kOwnEntries) run.erase(own);
    run["axes"] = Json::object();
    for (std::size_t a = 0; a < experiment.axes.size(); ++a) run["axes"][experiment.axes[a]] = experiment.runs[i].labels[a];
    run["state"] = outcome_text(states[i].outcome);
    if (!states[i].message.empty()) run["error"] = states[i].message;
    runs.push_back(std::move(run));
  }
  for (const ViewRow& row : view.rows)
    if (row.run != folder.runs() / row.id) runs.push_back(entry_of(row, view));
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

void print_report(const RunKind& kind, const Experiment& experiment, const std::vector<RunState>& states, const ResultsFolder& folder,
                  std::ostream& out) {
  const auto unchanged = std::count_if(states.begin(), states.end(), [](const RunState& s) { return s.outcome == RunState::kUnchanged; });
  if (unchanged > 0)
    out << fmt::format("{} of {} runs were there already, with the same inputs (--force does them again)\n", unchanged, states.size());
  if (!fs::exists(folder.path() / "summary.csv")) return;
  const CsvTable summary = read_csv(folder.path() / "summary.csv");
  const std::size_t num_axes = summary.at("seed") - 1;  // those of results that are included, too
  kind.report({summary, num_axes, experiment.seeds().size() > 1, folder}, out);
}

}  // namespace kvlab
