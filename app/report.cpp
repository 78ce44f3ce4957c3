#include "app/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>

#include "app/csv.h"
#include "app/run_files.h"
#include "app/text_file.h"

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

std::vector<std::string> complete_runs(const Experiment& experiment, const std::vector<RunState>& states) {
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i].outcome == RunState::kDone || states[i].outcome == RunState::kUnchanged) ids.push_back(experiment.runs[i].id);
  }
  return ids;
}

namespace {

Json manifest_of_run(const ResultsFolder& folder, const std::string& id) {
  std::ifstream stream(folder.runs() / id / "manifest.json");
  Json m = Json::parse(stream, nullptr, false);
  return m.is_object() ? m : Json::object();
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

// The whole experiment as it was run: the file's own lists, with what the command line set.
std::string whole_resolved(const Experiment& experiment) {
  YAML::Emitter out;
  YAML::Node root = YAML::Clone(parse_config(experiment.text, experiment.file, experiment.overrides)->root);
  root["name"] = experiment.name;
  out << root;
  return std::string(out.c_str()) + "\n";
}

// Metrics of the final table, where the experiment has them.
const std::vector<std::string> kTableColumns = {
    "ttft_p50_ms",       "ttft_p99_ms", "tpot_p50_ms",     "e2e_p50_ms",        "requests_per_s", "output_tokens_per_s", "goodput_per_s",
    "search_rate_per_s", "preemptions", "prefix_hit_frac", "kv_used_mean_frac", "hit_frac",       "token_hit_frac"};
constexpr std::size_t kMaxTableRows = 60;

// Positions of the columns to show: axes and seed where they vary, then metrics that have values.
std::vector<std::size_t> shown_columns(const CsvTable& summary, std::size_t num_axes) {
  const auto varies = [&](std::size_t c) {
    return std::any_of(summary.rows.begin(), summary.rows.end(), [&](const auto& row) { return row[c] != summary.rows[0][c]; });
  };
  const auto has_value = [&](std::size_t c) {
    return std::any_of(summary.rows.begin(), summary.rows.end(), [&](const auto& row) { return !row[c].empty(); });
  };
  std::vector<std::size_t> shown{0};
  for (std::size_t c = 1; c <= num_axes + 1; ++c) {
    if (varies(c)) shown.push_back(c);
  }
  for (const std::string& column : kTableColumns) {
    if (summary.has(column) && has_value(summary.at(column))) shown.push_back(summary.at(column));
  }
  return shown;
}

void print_table(const CsvTable& summary, std::size_t num_axes, std::ostream& out) {
  const std::vector<std::size_t> shown = shown_columns(summary, num_axes);
  std::vector<std::string> header;
  for (const std::size_t c : shown) header.push_back(summary.columns[c]);
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

// Runs with the same label share a line: "credibility (all runs): ...".
void print_labels(const std::vector<std::string>& run_ids, std::size_t num_runs, const ResultsFolder& folder, std::ostream& out) {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  std::vector<std::string> notes;
  for (const std::string& id : run_ids) {
    const Json m = manifest_of_run(folder, id);
    if (m.contains("note")) notes.push_back(fmt::format("note (run {}): {}", id, m["note"].get<std::string>()));
    if (m.contains("skipped")) notes.push_back(fmt::format("skipped (run {}): {}", id, m["skipped"].get<std::string>()));
    const std::string label = m.value("credibility", "");
    if (label.empty()) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == label; });
    if (same != groups.end())
      same->second.push_back(id);
    else
      groups.push_back({label, {id}});
  }
  constexpr std::size_t kMaxLines = 12;
  for (std::size_t g = 0; g < std::min(groups.size(), kMaxLines); ++g) {
    const auto& ids = groups[g].second;
    const std::string which = ids.size() == num_runs ? "all runs"
                              : ids.size() == 1      ? "run " + ids[0]
                                                     : fmt::format("run {} and {} more", ids[0], ids.size() - 1);
    out << fmt::format("credibility ({}): {}\n", which, groups[g].first);
  }
  if (groups.size() > kMaxLines) out << fmt::format("credibility of {} more in manifest.json\n", groups.size() - kMaxLines);
  for (const std::string& note : notes) out << note << "\n";
}

}  // namespace

void write_manifest(const Experiment& experiment, const std::vector<RunState>& states, const InputFiles& inputs,
                    const ResultsFolder& folder, double wall_s) {
  Json runs = Json::array();
  for (std::size_t i = 0; i < experiment.runs.size(); ++i) {
    const bool is_there = states[i].outcome == RunState::kDone || states[i].outcome == RunState::kUnchanged;
    Json run = is_there ? manifest_of_run(folder, experiment.runs[i].id) : Json{{"run", experiment.runs[i].id}};
    run["state"] = outcome_text(states[i].outcome);
    if (!states[i].message.empty()) run["error"] = states[i].message;
    runs.push_back(std::move(run));
  }
  const Json m = {{"program", "kvlab " + program_version()},
                  {"program_fingerprint", program_fingerprint()},
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
  replace_file(folder.path() / "resolved.yaml", whole_resolved(experiment));
  replace_file(folder.path() / "manifest.json", m.dump(2) + "\n");
}

void print_report(const Experiment& experiment, const std::vector<RunState>& states, const ResultsFolder& folder, std::ostream& out) {
  const auto unchanged = std::count_if(states.begin(), states.end(), [](const RunState& s) { return s.outcome == RunState::kUnchanged; });
  if (unchanged > 0)
    out << fmt::format("{} of {} runs were there already, with the same inputs (--force does them again)\n", unchanged, states.size());
  if (!fs::exists(folder.path() / "summary.csv")) return;
  print_table(read_csv(folder.path() / "summary.csv"), experiment.axes.size(), out);
  print_labels(complete_runs(experiment, states), experiment.runs.size(), folder, out);
}

}  // namespace kvlab
