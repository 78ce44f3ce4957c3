#include "app/results/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "app/commands/command.h"
#include "app/results/entry_labels.h"
#include "app/results/results_info.h"
#include "app/results/run_folder.h"
#include "app/results/safe_files.h"
#include "app/results/view.h"
#include "app/runs/report/report.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"

namespace kvlab {

namespace {

struct ResultsCommand {
  std::vector<std::string> words;
  bool yes = false;
  bool every = false;  // all runs of a name
};

namespace fs = std::filesystem;
using JoinJson = nlohmann::ordered_json;

constexpr const char* kJoined = "joined";

// Absent, empty or a joined folder.
void require_free(const fs::path& out) {
  if (kind_of(out) == PathKind::kNothing) return;
  if (kind_of(out) == PathKind::kFolder && fs::is_empty(out)) return;
  if (read_json_object<JoinJson>(out / "manifest.json").contains(kJoined)) return;
  throw InputError(out.string() + ": is there already, and is no result of 'kvlab results join': choose another name");
}

std::string require_one_kind(const std::vector<fs::path>& folders) {
  const std::string first = read_results_info(folders.front()).kind;
  for (const fs::path& folder : folders)
    if (const std::string kind = read_results_info(folder).kind; kind != first)
      throw InputError(fmt::format("{} holds runs of kind '{}', and {} of kind '{}': only runs of one kind can be joined",
                                   folders.front().string(), first, folder.string(), kind));
  return first;
}

std::string resolved_for(const fs::path& run, const fs::path& target) {
  Experiment experiment = load_experiment((run / "resolved.yaml").string(), {});
  experiment.runs.at(0).id = run.filename().string();
  return experiment.resolved_in(target, experiment.runs.at(0));
}

// "" if equal.
std::string conflict_between(const fs::path& kept, const fs::path& other) {
  const RunManifest a = read_run_manifest(kept), b = read_run_manifest(other);
  const auto digest = [](const RunManifest& m) { return m.files.contains("summary.csv") ? m.files.at("summary.csv") : ""; };
  if (digest(a) == digest(b)) return "";
  const std::string changed = changed_code(b.code, a.code);
  return fmt::format("run {}: {} and {} differ{}; the first is taken\n", kept.filename().string(), kept.string(), other.string(),
                     changed.empty() ? "" : " (made by other versions of " + changed + ")");
}

// Differs from its source, which is intact.
bool is_stale_copy(const fs::path& copy, const fs::path& source) {
  const RunManifest a = read_run_manifest(copy), b = read_run_manifest(source);
  if (!a.is_ours() || !a.is_finished || !damage_of(source, b).empty()) return false;
  const auto tables = [](RunManifest m) {
    m.files.erase("resolved.yaml");  // has paths relative to its place
    return std::move(m.files);
  };
  return tables(a) != tables(b) || a.code != b.code;
}

// Runs with `folder` as first source.
void copy_runs_of(const fs::path& folder, const std::map<std::string, fs::path>& first, const ResultsFolder& target) {
  std::vector<std::string> own;
  for (const auto& [id, run] : first) {
    if (run != folder / "runs" / id) continue;
    own.push_back(id);
    const fs::path copy = target.runs() / id;
    if (is_stale_copy(copy, run)) remove_files(copy, read_run_manifest(copy).file_names(), "manifest.json");
  }
  adopt_runs(own, {folder}, target, [&](const std::string& id) { return resolved_for(folder / "runs" / id, target.runs() / id); });
}

struct Sources {
  std::map<std::string, fs::path> first;  // run -> its folder in the first results folder
  std::string remarks;
  std::size_t num_shared = 0;

  void add(const ViewRow& row) {
    const auto [known, is_new] = first.emplace(row.id, row.run);
    if (is_new || known->second == row.run) return;
    ++num_shared;
    remarks += conflict_between(known->second, row.run);
  }
};

JoinJson manifest_of(const fs::path& out, const std::string& kind, const std::vector<fs::path>& folders, const View& view,
                     const EntryLabels& labels) {
  JoinJson runs = JoinJson::array(), names = JoinJson::array();
  std::string newest;
  for (const fs::path& folder : folders) {
    names.push_back(folder.string());
    newest = std::max(newest, read_results_info(folder).finished);
  }
  for (const ViewRow& row : view.rows) runs.push_back(entry_of(row, view, "joined"));
  JoinJson manifest = {{"program", "kvlab " + program_version()},
                       {"experiment", out.filename().string()},
                       {"kind", kind},
                       {kJoined, names},
                       {"finished", newest},
                       {"axes", view.axes}};
  if (!labels.empty()) manifest["entries"] = labels.json();
  manifest["runs"] = std::move(runs);
  return manifest;
}

std::string ambiguous_lines(const EntryLabels& labels) {
  std::string lines;
  for (const auto& [column, label] : labels.ambiguous())
    lines += fmt::format("{} {}: names entries with other settings in each folder; tables keep the id, column '{}' tells rows apart\n",
                         column, label, kOriginAxis);
  return lines;
}

// Joins newest sweeps in a new folder. Axes: `results` (each row's folder) and those of all. Returns remarks on duplicate runs.
// Throws InputError if `out` holds an experiment's results, or kinds or columns differ.
std::string join_results(const fs::path& out, const std::vector<fs::path>& folders) {
  if (folders.size() < 2) throw InputError("kvlab results join OUT A B ...: needs two folders or more to join");
  require_free(out);
  for (const fs::path& folder : folders) {
    std::error_code error;
    if (fs::equivalent(folder, out, error)) throw InputError(out.string() + ": is the folder to write, and one of those to join");
  }
  const std::string kind = require_one_kind(folders);
  ViewUnion all;
  Sources sources;
  for (const fs::path& folder : folders) {
    const FolderView found = view_of_folder(folder);
    sources.remarks += found.remark;
    for (const ViewRow& row : found.view.rows) sources.add(row);
    all.add(found.view, folder.string());
  }
  View view = all.view();
  Experiment none;
  none.name = out.filename().string();
  none.file = (out / "resolved.yaml").string();
  ResultsFolder target(out, none, ResultsFolder::Joins::kNo);
  std::vector<std::string> ids;
  for (const auto& [id, run] : sources.first) ids.push_back(id);
  target.begin_sweep(ids, {"summary.csv", "manifest.json"});
  for (const fs::path& folder : folders) copy_runs_of(folder, sources.first, target);
  for (ViewRow& row : view.rows) {
    row.run = target.runs() / row.id;
    if (kind_of(row.run) != PathKind::kFolder)
      throw InputError(sources.first.at(row.id).string() + ": is damaged: run its experiment again, then join");
  }
  join_runs(target, view);
  const EntryLabels labels(view);
  target.replace_texts({{"manifest.json", manifest_of(out, kind, folders, view, labels).dump(2) + "\n"}});
  const std::string shared = sources.num_shared > 0 ? runs_are(sources.num_shared) + " in more than one folder, with one row each\n" : "";
  return sources.remarks + shared + ambiguous_lines(labels) + fmt::format("joined {} runs of {} folders\n", ids.size(), folders.size());
}

constexpr std::size_t kMostListed = 40;

// The first column with values is the main metric.
constexpr const char* kListedMetrics[] = {"search_rate_per_s", "score",       "hit_frac",           "attention_mass",
                                          "goodput_per_s",     "ttft_p50_ms", "output_tokens_per_s"};

std::string list_all() {
  const ResultsFound found = results_in("results");
  std::vector<std::vector<std::string>> rows;
  for (const fs::path& folder : found.folders) {
    const ResultsInfo info = read_results_info(folder);
    const std::string runs = fmt::format("{} of {}", info.num_finished, info.num_runs);
    rows.push_back({folder.filename().string(), info.kind, runs, info.num_unused > 0 ? std::to_string(info.num_unused) : "",
                    size_text(info.bytes), info.finished.empty() ? "stopped" : info.finished.substr(0, 16),
                    info.has_other_code ? "other" : ""});
  }
  const std::string others = found.num_others > 0 ? fmt::format("{} other entries of results/ are no results\n", found.num_others) : "";
  if (rows.empty()) return "results: holds no results; kvlab run makes some\n" + others;
  return text_table({"name", "kind", "finished", "unused", "size", "newest (UTC)", "code"}, rows) + others;
}

std::string main_metric(const CsvTable& summary) {
  for (const char* const column : kListedMetrics) {
    if (!summary.has(column)) continue;
    const std::size_t c = summary.at(column);
    if (std::any_of(summary.rows.begin(), summary.rows.end(), [&](const auto& row) { return !row[c].empty(); })) return column;
  }
  return "";
}

void print_unfinished(const fs::path& folder, std::ostream& out) {
  const auto manifest = read_json_object<nlohmann::json>(folder / "manifest.json");
  if (!manifest.contains("runs") || !manifest["runs"].is_array()) return;
  for (const auto& run : manifest["runs"]) {
    const std::string state = run.is_object() ? run.value("state", "") : "";
    if (state == "failed" || state == "not run")
      out << fmt::format("{}: {}{}\n", run.value("run", "?"), state, run.contains("error") ? ": " + run["error"].get<std::string>() : "");
  }
}

void list_one(const ResultsCommand& command, std::ostream& out) {
  const fs::path folder = find_results(command.words[0]);
  const ResultsInfo info = read_results_info(folder);
  out << fmt::format("{}: {}, {} of {} runs finished{}, {}{}{}\n", folder.string(), info.kind, info.num_finished, info.num_runs,
                     info.num_unused > 0 ? fmt::format(", {} of other sweeps", info.num_unused) : "", size_text(info.bytes),
                     info.finished.empty() ? "" : ", " + info.finished, info.has_other_code ? ", made by another version" : "");
  if (!info.file.empty()) out << "experiment: " << info.file << "\n";
  print_unfinished(folder, out);
  if (kind_of(folder / "summary.csv") != PathKind::kFile) return;
  CsvTable summary = read_csv(folder / "summary.csv");
  EntryLabels::of_folder(folder).show_in(summary);
  const std::size_t num_axes = summary.at("seed") - 1;
  const std::string metric = main_metric(summary);
  std::vector<std::string> header(summary.columns.begin(), summary.columns.begin() + 2 + static_cast<std::ptrdiff_t>(num_axes));
  if (!metric.empty()) header.push_back(metric);
  std::vector<std::vector<std::string>> rows;
  const std::size_t shown = command.every ? summary.rows.size() : std::min(summary.rows.size(), kMostListed);
  for (std::size_t r = 0; r < shown; ++r) {
    const auto& row = summary.rows[r];
    rows.emplace_back(row.begin(), row.begin() + 2 + static_cast<std::ptrdiff_t>(num_axes));
    if (!metric.empty()) rows.back().push_back(short_number(row[summary.at(metric)]));
  }
  out << text_table(header, rows);
  if (shown < summary.rows.size()) out << fmt::format("... {} more; --all prints them\n", summary.rows.size() - shown);
}

std::string join_folders(const ResultsCommand& command) {
  if (command.words.size() < 4) throw InputError("kvlab results join OUT A B ...: needs a folder to write and two or more to join");
  fs::path target = command.words[1];
  if (!target.has_parent_path()) target = fs::path("results") / target;
  std::vector<fs::path> folders;
  for (std::size_t i = 2; i < command.words.size(); ++i) folders.push_back(find_results(command.words[i]));
  return join_results(target, folders) + "wrote " + target.string() + "\n";
}

void show_results(const ResultsCommand& command, std::ostream& out) {
  const auto& words = command.words;
  if (words.empty()) {
    out << list_all();
  } else if (words[0] == "join") {
    out << join_folders(command);
  } else if (words[0] == "clean") {
    if (words.size() != 2) throw InputError("kvlab results clean NAME: needs one results folder");
    clean_results(find_results(words[1]).string(), command.yes, out);
  } else {
    if (words.size() > 1) throw InputError("kvlab results NAME: takes one name; 'kvlab results join OUT A B' joins folders");
    list_one(command, out);
  }
}

}  // namespace

void add_results_command(CLI::App& app, Command& chosen) {
  CLI::App* const one = app.add_subcommand("results", "list the results there are, or the runs of one; join folders; clean one");
  auto& c = arguments_of<ResultsCommand>(*one);
  one->add_option("words", c.words,
                  "none: all folders in results/; NAME: its runs; join OUT A B ...: their finished runs in one folder; clean NAME: remove "
                  "runs that its newest sweep does not use")
      ->check(offers(Offer::kWords, "join clean"))
      ->check(offers(Offer::kResultNames));
  one->add_flag("--all", c.every, "NAME: every run, not the first 40");
  one->add_flag("--yes", c.yes, "clean: remove without asking");
  choose(one, chosen, c, show_results);
}

}  // namespace kvlab
