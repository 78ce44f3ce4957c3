#include "app/commands/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "app/commands/clean.h"
#include "app/commands/offers.h"
#include "app/results/entry_labels.h"
#include "app/results/join_results.h"
#include "app/results/results_info.h"
#include "app/results/safe_files.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/json_text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostListed = 40;

// The first column with values is the main metric.
constexpr const char* kListedMetrics[] = {"search_rate_per_s", "score",       "hit_frac",           "attention_mass",
                                          "goodput_per_s",     "ttft_p50_ms", "output_tokens_per_s"};

int list_all(std::ostream& out) {
  const ResultsFound found = results_in("results");
  std::vector<std::vector<std::string>> rows;
  for (const fs::path& folder : found.folders) {
    const ResultsInfo info = read_results_info(folder);
    const std::string runs = fmt::format("{} of {}", info.num_finished, info.num_runs);
    rows.push_back({folder.filename().string(), info.kind, runs, info.num_unused > 0 ? std::to_string(info.num_unused) : "",
                    size_text(info.bytes), info.finished.empty() ? "stopped" : info.finished.substr(0, 16),
                    info.has_other_code ? "other" : ""});
  }
  if (rows.empty())
    out << "results: holds no results; kvlab run makes some\n";
  else
    out << text_table({"name", "kind", "finished", "unused", "size", "newest (UTC)", "code"}, rows);
  if (found.num_others > 0) out << fmt::format("{} other entries of results/ are no results\n", found.num_others);
  return 0;
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

int list_one(const ResultsCommand& command, std::ostream& out) {
  const fs::path folder = find_results(command.words[0]);
  const ResultsInfo info = read_results_info(folder);
  out << fmt::format("{}: {}, {} of {} runs finished{}, {}{}{}\n", folder.string(), info.kind, info.num_finished, info.num_runs,
                     info.num_unused > 0 ? fmt::format(", {} of other sweeps", info.num_unused) : "", size_text(info.bytes),
                     info.finished.empty() ? "" : ", " + info.finished, info.has_other_code ? ", made by another version" : "");
  if (!info.file.empty()) out << "experiment: " << info.file << "\n";
  print_unfinished(folder, out);
  if (kind_of(folder / "summary.csv") != PathKind::kFile) return 0;
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
  return 0;
}

int join_folders(const ResultsCommand& command, std::ostream& out) {
  if (command.words.size() < 4) throw InputError("kvlab results join OUT A B ...: needs a folder to write and two or more to join");
  fs::path target = command.words[1];
  if (!target.has_parent_path()) target = fs::path("results") / target;
  std::vector<fs::path> folders;
  for (std::size_t i = 2; i < command.words.size(); ++i) folders.push_back(find_results(command.words[i]));
  out << join_results(target, folders) << "wrote " << target.string() << "\n";
  return 0;
}

}  // namespace

int show_results(const ResultsCommand& command, std::istream& in, std::ostream& out) {
  const auto& words = command.words;
  if (words.empty()) return list_all(out);
  if (words[0] == "join") return join_folders(command, out);
  if (words[0] == "clean") {
    if (words.size() != 2) throw InputError("kvlab results clean NAME: needs one results folder");
    return clean_results({find_results(words[1]).string(), command.yes, command.can_ask}, in, out);
  }
  if (words.size() > 1) throw InputError("kvlab results NAME: takes one name; 'kvlab results join OUT A B' joins folders");
  return list_one(command, out);
}

void add_results_command(CLI::App& app, ResultsCommand& c, const std::function<void()>& choose) {
  CLI::App* const one = app.add_subcommand("results", "list the results there are, or the runs of one; join folders; clean one");
  one->add_option("words", c.words,
                  "none: all folders in results/; NAME: its runs; join OUT A B ...: their finished runs in one folder; clean NAME: remove "
                  "runs that its newest sweep does not use")
      ->check(offers(Offer::kWords, "join clean"))
      ->check(offers(Offer::kResultNames));
  one->add_flag("--all", c.every, "NAME: every run, not the first 40");
  one->add_flag("--yes", c.yes, "clean: remove without asking");
  one->callback(choose);
}

}  // namespace kvlab
