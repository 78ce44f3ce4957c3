#include <fmt/format.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "app/commands/command.h"
#include "app/results/results.h"
#include "app/results/results_info.h"
#include "app/results/run_files.h"
#include "app/results/run_folder.h"
#include "app/results/safe_files.h"
#include "base/json_text.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

struct CleanCommand {
  std::string folder;
  bool yes = false;
};

struct Leftover {
  fs::path path;
  std::string title;
  std::set<std::string> files;  // of a folder; empty if `path` is a file
  std::uintmax_t bytes = 0;
};

std::string one_line(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  if (node.IsMap() && node.size() == 1 && node.begin()->second.IsMap()) return node.begin()->first.Scalar();
  YAML::Emitter text;
  text.SetMapFormat(YAML::Flow);
  text.SetSeqFormat(YAML::Flow);
  text << node;
  constexpr std::size_t kMost = 60;
  const std::string all = text.c_str();
  return all.size() <= kMost ? all : all.substr(0, kMost) + "...";
}

// "scheduler=orca".
void add_differences(const YAML::Node& run, const YAML::Node& sweep, const std::string& path, std::string& title) {
  if (run.IsMap() && sweep.IsDefined() && sweep.IsMap()) {
    for (const auto& item : run) {
      const std::string key = item.first.Scalar();
      if (path.empty() && (key == "name" || key == "seed" || key == "seeds" || key == "paths_from")) continue;
      add_differences(item.second, sweep[key], path + (path.empty() ? "" : ".") + key, title);
    }
    return;
  }
  if (run.IsScalar() && sweep.IsDefined() && sweep.IsScalar() && run.Scalar() == sweep.Scalar()) return;
  title += fmt::format("{}={} ", path, one_line(run));
}

std::string title_of(const fs::path& run, const YAML::Node& sweep) {
  const YAML::Node config = read_run_settings(run).tree;
  if (!config.IsMap()) return "";
  std::string title;
  add_differences(config, sweep, "", title);
  const YAML::Node seed = config["seed"];
  return title + (seed.IsDefined() && seed.IsScalar() ? "seed=" + seed.Scalar() : "");
}

Leftover folder_of(const fs::path& path, std::string title, std::set<std::string> files) {
  Leftover found{path, std::move(title), std::move(files), 0};
  std::error_code error;
  for (const std::string& name : found.files)
    if (kind_of(path / name) == PathKind::kFile) found.bytes += fs::file_size(path / name, error);
  return found;
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::set<std::string> runs_in_use(const ResultsFolder& folder) {
  std::set<std::string> ids = folder.sweep();
  const auto top = read_json_object<nlohmann::json>(folder.path() / "manifest.json");
  if (!top.contains("runs") || !top["runs"].is_array()) return ids;
  for (const auto& run : top["runs"])
    if (run.is_object() && run.contains("run") && run["run"].is_string()) ids.insert(run["run"].get<std::string>());
  return ids;
}

void find_runs(const ResultsFolder& folder, std::vector<Leftover>& found) {
  const std::set<std::string> in_use = runs_in_use(folder);
  const YAML::Node sweep = read_run_settings(folder.path()).tree;
  for (const fs::path& path : sorted_entries(folder.runs())) {
    const std::string name = path.filename().string();
    if (is_leftover(path)) {
      found.push_back(folder_of(path, "of a run that was cut off", read_run_manifest(path).file_names()));
      continue;
    }
    if (in_use.contains(name) || kind_of(path) != PathKind::kFolder) continue;
    const RunManifest manifest = read_run_manifest(path);
    if (manifest.id != name) continue;  // not written by kvlab
    found.push_back(
        folder_of(path, (manifest.is_numbered ? "of an earlier version, " : "") + title_of(path, sweep), manifest.file_names()));
  }
}

bool is_partial(const fs::path& path) {
  const std::string stem = path.stem().string();
  const bool is_key = stem.size() == 16 && stem.find_first_not_of("0123456789abcdef") == std::string::npos;
  return is_key && path.extension() == ".txt" && kind_of(path) == PathKind::kFile;
}

void find_partial(const ResultsFolder& folder, std::vector<Leftover>& found) {
  if (kind_of(folder.partial()) != PathKind::kFolder) return;
  for (const fs::path& path : sorted_entries(folder.partial()))
    if (is_partial(path)) found.push_back({path, "answers of a graded run that is not complete", {}, fs::file_size(path)});
}

void find_unfinished(const ResultsFolder& folder, std::vector<Leftover>& found) {
  for (const fs::path& path : unfinished_files(folder.path()))
    found.push_back({path, "a file that was being written when its program ended", {}, fs::file_size(path)});
}

bool is_confirmed(const std::string& folder, bool yes, std::ostream& out) {
  if (yes) return true;
  if (::isatty(STDIN_FILENO) != 1 || ::isatty(STDOUT_FILENO) != 1) {
    out << "nothing was removed: kvlab clean " << folder << " --yes removes it\n";
    return false;
  }
  out << "remove? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "yes";
}

void remove(const Leftover& one) {
  if (one.files.empty())
    fs::remove(one.path);
  else
    remove_files(one.path, one.files, "manifest.json");
}

}  // namespace

void clean_results(const std::string& named, bool yes, std::ostream& out) {
  const ResultsFolder folder{fs::path(named)};
  std::vector<Leftover> found;
  find_runs(folder, found);
  find_partial(folder, found);
  find_unfinished(folder, found);
  std::uintmax_t bytes = 0;
  for (const Leftover& one : found) {
    bytes += one.bytes;
    out << fmt::format("{}  {}  {}\n", one.path.lexically_relative(folder.path()).string(), size_text(one.bytes), one.title);
  }
  if (found.empty()) {
    out << named << ": holds nothing but its newest sweep\n";
    return;
  }
  out << fmt::format("{} to remove, {}; what the newest sweep uses stays\n", found.size(), size_text(bytes));
  if (!is_confirmed(named, yes, out)) return;
  for (const Leftover& one : found) remove(one);
  std::error_code ignored;
  fs::remove(folder.partial(), ignored);  // succeeds if empty
  std::size_t kept = 0;
  for (const Leftover& one : found) {
    const bool stays = kind_of(one.path) != PathKind::kNothing;
    if (stays) ++kept, bytes -= one.bytes;
    out << fmt::format("{} {}\n", stays ? "stays, with files that kvlab did not write:" : "removed", one.path.string());
  }
  out << fmt::format("removed {} of {}, {}\n", found.size() - kept, found.size(), size_text(bytes));
}

void add_clean_command(CLI::App& app, Command& chosen) {
  CLI::App* const clean =
      app.add_subcommand("clean", "remove runs that the newest sweep of a results folder does not use, after saying which");
  auto& c = arguments_of<CleanCommand>(*clean);
  clean->add_option("folder", c.folder, "results folder")->required()->check(offers(Offer::kResults));
  clean->add_flag("--yes", c.yes, "remove them without asking");
  choose(clean, chosen, c, [](const CleanCommand& given, std::ostream& out) { clean_results(given.folder, given.yes, out); });
}

}  // namespace kvlab
