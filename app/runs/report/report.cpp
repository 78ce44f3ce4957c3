#include "app/runs/report/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <thread>

#include "app/results/code_version.h"
#include "app/results/entry_labels.h"
#include "app/runs/report/known_metrics.h"
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

// With the punctuation around it.
struct Bare {
  std::string before, word, after;
};
Bare bare(const std::string& word) {
  const std::size_t begin = std::min(word.find_first_not_of("(['"), word.size());
  const std::size_t last = word.find_last_not_of(",;:.)]'");
  const std::size_t end = last == std::string::npos || last < begin ? begin : last + 1;
  return {word.substr(0, begin), word.substr(begin, end - begin), word.substr(end)};
}

// "2 to 8", "A100|H100|H200".
std::string joined_words(const std::vector<std::string>& words) {
  if (words.size() == 1) return words[0];
  constexpr std::size_t kMostNamed = 4;
  const Bare first = bare(words[0]);
  std::vector<std::string> texts;
  double least = 0, most = 0;
  std::string low, high;
  bool are_numbers = true;
  for (const std::string& word : words) {
    const Bare b = bare(word);
    double value = 0;
    are_numbers = are_numbers && parse_real(b.word, value);
    if (texts.empty() || value < least) least = value, low = b.word;
    if (texts.empty() || value > most) most = value, high = b.word;
    texts.push_back(b.word);
  }
  if (are_numbers) return first.before + low + " to " + high + first.after;
  if (texts.size() > kMostNamed) texts.resize(kMostNamed), texts.emplace_back("...");
  return first.before + join(texts, "|") + first.after;
}

bool is_alike(const std::vector<std::vector<std::string>>& group, const std::vector<std::string>& words) {
  if (group.size() != words.size()) return false;
  std::size_t equal = 0;
  for (std::size_t i = 0; i < words.size(); ++i) equal += group[i][0] == words[i] ? 1 : 0;
  constexpr std::size_t kFewWords = 6;  // in a short text each word matters
  return equal == words.size() || (words.size() >= kFewWords && 3 * equal >= 2 * words.size());
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

constexpr std::array kOutcomes = {"not run", "unchanged", "done", "failed", "failed"};  // by RunState::Outcome

std::vector<std::string> sentences_of(const Json& manifest, const std::string& key) {
  if (key == "note" && manifest.contains("notes") && manifest["notes"].is_array()) return manifest["notes"].get<std::vector<std::string>>();
  return manifest.contains(key) ? std::vector{manifest[key].get<std::string>()} : std::vector<std::string>{};
}

struct Remarks {
  const char *key, *title;
  JoinedTexts texts;
  std::vector<std::vector<std::string>> runs;  // per text

  void add(const Json& manifest, const std::string& run) {
    for (const std::string& sentence : sentences_of(manifest, key)) {
      const std::size_t at = texts.add(sentence);
      if (at == runs.size()) runs.emplace_back();
      if (runs[at].empty() || runs[at].back() != run) runs[at].push_back(run);
    }
  }
};

constexpr const char* kOwnEntries[] = {"kvlab_run", "code", "inputs", "files"};  // only in a run's own manifest

}  // namespace

std::size_t JoinedTexts::add(const std::string& text) {
  const std::vector<std::string> words = words_in(text);
  std::size_t at = 0;
  while (at < groups_.size() && !is_alike(groups_[at], words)) ++at;
  if (at == groups_.size()) groups_.emplace_back(words.size());
  Group& group = groups_[at];
  for (std::size_t i = 0; i < words.size(); ++i)
    if (std::find(group[i].begin(), group[i].end(), words[i]) == group[i].end()) group[i].push_back(words[i]);
  return at;
}

std::string JoinedTexts::text(std::size_t group) const {
  std::vector<std::string> words;
  for (const auto& place : groups_[group]) words.push_back(joined_words(place));
  return join(words, " ");
}

Json entry_of(const ViewRow& row, const View& view, const char* state) {
  Json run = read_json_object<Json>(row.run / "manifest.json");
  for (const char* own : kOwnEntries) run.erase(own);
  for (std::size_t a = 0; a < view.axes.size(); ++a) run["axes"][view.axes[a]] = row.labels[a];
  run["state"] = state;
  return run;
}

std::string runs_text(const std::vector<std::string>& runs, std::size_t num_runs) {
  if (runs.size() == num_runs && num_runs > 1) return fmt::format("all {} runs", num_runs);
  return runs.size() == 1 ? "run " + runs[0] : fmt::format("{} runs from {}", runs.size(), runs[0]);
}

void print_remarks(const SweepReport& report, std::ostream& out) {
  Remarks kinds[] = {{"note", "note", {}, {}}, {"skipped", "skipped", {}, {}}, {"not_served", "not served", {}, {}}};
  std::set<std::string> runs;
  for (const auto& row : report.summary.rows) {
    if (!runs.insert(row[0]).second) continue;  // shared grid points or rows of tasks
    const Json m = manifest_of_run(report.folder, row[0]);
    for (Remarks& kind : kinds) kind.add(m, row[0]);
  }
  for (const Remarks& kind : kinds)
    for (std::size_t i = 0; i < kind.texts.size(); ++i)
      out << fmt::format("{} ({}): {}\n", kind.title, runs_text(kind.runs[i], runs.size()), kind.texts.text(i));
}

void write_manifest(const Experiment& experiment, const std::vector<RunState>& states, const InputFiles& inputs, const View& view,
                    ResultsFolder& folder, double wall_s) {
  Json runs = Json::array();
  for (std::size_t i = 0; i < experiment.runs.size(); ++i) {
    const bool is_there = states[i].outcome == RunState::kDone || states[i].outcome == RunState::kUnchanged;
    Json run = is_there ? manifest_of_run(folder, experiment.runs[i].id) : Json{{"run", experiment.runs[i].id}};
    for (const char* own : kOwnEntries) run.erase(own);
    run["axes"] = Json::object();
    for (std::size_t a = 0; a < experiment.axes.size(); ++a) run["axes"][experiment.axes[a]] = experiment.runs[i].labels[a];
    run["state"] = kOutcomes[states[i].outcome];
    if (!states[i].message.empty()) run["error"] = states[i].message;
    runs.push_back(std::move(run));
  }
  for (const ViewRow& row : view.rows)
    if (row.run != folder.runs() / row.id) runs.push_back(entry_of(row, view, "included"));
  Json m = {{"program", "kvlab " + program_version()},
            {"code", code_version({}).at("core")},
            {"experiment", experiment.name},
            {"file", experiment.file},
            {"set", experiment.overrides},
            {"seeds", experiment.seeds()},
            {"axes", experiment.axes}};
  add_entries(view, m);
  m["inputs"] = inputs.all();
  m["host"] = {{"name", host_name()}, {"cores", std::thread::hardware_concurrency()}};
  m["finished"] = utc_now();
  m["wall_s"] = wall_s;
  m["runs"] = std::move(runs);
  folder.replace_texts({{"resolved.yaml", experiment.resolved_in(folder.path())}, {"manifest.json", m.dump(2) + "\n"}});
}

void print_report(const RunKind& kind, const Experiment& experiment, const std::vector<RunState>& states, const ResultsFolder& folder,
                  std::ostream& out) {
  const auto unchanged = std::count_if(states.begin(), states.end(), [](const RunState& s) { return s.outcome == RunState::kUnchanged; });
  if (unchanged > 0)
    out << fmt::format("{} of {} runs were there already, with the same inputs (--force does them again)\n", unchanged, states.size());
  if (!fs::exists(folder.path() / "summary.csv")) return;
  CsvTable summary = read_csv(folder.path() / "summary.csv");
  EntryLabels::of_folder(folder.path()).show_in(summary);
  const std::size_t num_axes = summary.at("seed") - 1;  // includes axes of included results
  kind.report({summary, num_axes, experiment.seeds().size() > 1, folder}, out);
}

}  // namespace kvlab
