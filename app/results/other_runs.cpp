#include "app/results/other_runs.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/results/run_manifest.h"
#include "app/results/run_settings.h"
#include "app/results/safe_files.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/json_text.h"

namespace kvlab {

namespace fs = std::filesystem;

std::string runs_are(std::size_t count, const std::string& of) {
  return fmt::format("{} {}{} {}", count, count == 1 ? "run" : "runs", of.empty() ? "" : " of " + of, count == 1 ? "is" : "are");
}

std::set<std::string> included_runs(const fs::path& folder) {
  std::set<std::string> ids;
  const auto manifest = read_json_object<nlohmann::json>(folder / "manifest.json");
  if (!manifest.contains("runs") || !manifest["runs"].is_array()) return ids;
  for (const auto& run : manifest["runs"])
    if (run.is_object() && run.value("state", "") == "included") ids.insert(run.value("run", ""));
  return ids;
}

namespace {

std::string left_out_line(std::size_t count, const std::string& folder, const std::string& why) {
  return count == 0 ? "" : runs_are(count, folder) + " " + why + " and " + (count == 1 ? "is" : "are") + " left out\n";
}

// A scalar, or the only key of a mapping.
std::string setting_at(const YAML::Node& root, const std::string& path) {
  const YAML::Node at = node_at(root, path);
  if (!at.IsDefined()) return "";
  if (at.IsScalar()) return at.Scalar();
  return at.IsMap() && at.size() == 1 ? at.begin()->first.Scalar() : "";
}

// With a known experiment of its name if there is one.
std::string command_for(const std::string& folder) {
  const std::string name = fs::path(folder).filename().string();
  for (const fs::path& file : experiment_files())
    if (file.stem() == name) return fmt::format("kvlab run {}", file.string());
  return fmt::format("kvlab run FILE.yaml --out {}", folder);
}

}  // namespace

FolderView view_of_folder(const fs::path& folder) {
  if (kind_of(folder) != PathKind::kFolder) throw InputError(folder.string() + ": no such folder; kvlab run makes one");
  if (kind_of(folder / "summary.csv") != PathKind::kFile)
    throw InputError(folder.string() + ": holds no summary.csv, so no run of it has finished");
  const CsvTable summary = read_csv(folder / "summary.csv");
  const std::size_t num_axes = summary.at("seed") - 1;
  View view;
  std::size_t num_broken = 0, num_included = 0;
  const std::set<std::string> included = included_runs(folder);
  view.axes.assign(summary.columns.begin() + 1, summary.columns.begin() + 1 + static_cast<std::ptrdiff_t>(num_axes));
  std::set<std::pair<std::string, std::vector<std::string>>> seen;  // graded answers have several rows per run
  for (const auto& row : summary.rows) {
    const fs::path run = folder / "runs" / row[0];
    std::vector<std::string> labels(row.begin() + 1, row.begin() + 1 + static_cast<std::ptrdiff_t>(num_axes));
    if (!seen.insert({row[0], labels}).second) continue;
    if (const RunManifest manifest = read_run_manifest(run); manifest.is_ours() && manifest.is_finished && !manifest.is_numbered)
      view.rows.push_back({row[0], run, std::move(labels)});
    else
      ++(included.contains(row[0]) ? num_included : num_broken);
  }
  if (view.rows.empty()) throw InputError(folder.string() + ": holds no finished run");
  return {view, left_out_line(num_broken, folder.string(), "damaged or gone") +
                    left_out_line(num_included, folder.string(), "of results that it includes (name these folders, too)")};
}

std::size_t ViewUnion::add(const View& view, const std::string& origin) {
  std::set<std::string> known;
  for (const Part& part : parts_)
    for (const ViewRow& row : part.view.rows) known.insert(row.id);
  Part part{{view.axes, {}}, origin};
  for (const ViewRow& row : view.rows)
    if (!known.contains(row.id)) part.view.rows.push_back(row);
  const std::size_t left_out = view.rows.size() - part.view.rows.size();
  parts_.push_back(std::move(part));
  return left_out;
}

View ViewUnion::view() const {
  View all;
  all.axes = {kOriginAxis};
  for (const Part& part : parts_)
    for (const std::string& axis : part.view.axes)
      if (std::find(all.axes.begin(), all.axes.end(), axis) == all.axes.end()) all.axes.push_back(axis);
  for (const Part& part : parts_) {
    const auto& own = part.view.axes;
    const bool has_origin = !own.empty() && own[0] == kOriginAxis;  // already a union
    const bool has_all = own.size() + (has_origin ? 0 : 1) == all.axes.size();
    for (const ViewRow& row : part.view.rows) {
      const YAML::Node settings = has_all ? YAML::Node() : read_run_settings(row.run).tree;
      std::vector<std::string> labels;
      for (const std::string& axis : all.axes) {
        const auto found = std::find(own.begin(), own.end(), axis);
        labels.push_back(found != own.end()    ? row.labels[static_cast<std::size_t>(found - own.begin())]
                         : axis == kOriginAxis ? part.origin
                                               : setting_at(settings, axis));
      }
      all.rows.push_back({row.id, row.run, std::move(labels)});
    }
  }
  return all;
}

void require_included(const Experiment& experiment, const fs::path& own) {
  for (const IncludedResults& other : experiment.included) {
    std::error_code error;
    if (fs::equivalent(other.path, own, error))
      throw InputError(fmt::format("{}: 'include_results': '{}' is this experiment's own results folder: delete it from the list",
                                   other.place, other.folder));
    if (kind_of(other.path / "summary.csv") != PathKind::kFile)
      throw InputError(fmt::format("{}: 'include_results': there are no results in '{}': '{}' makes them", other.place, other.folder,
                                   command_for(other.folder)));
  }
}

std::string include_results(const Experiment& experiment, View& view) {
  if (experiment.included.empty()) return "";
  ViewUnion all;
  all.add(view, experiment.name);
  std::string remark;
  for (const IncludedResults& other : experiment.included) {
    const FolderView found = view_of_folder(other.path);
    if (!found.remark.empty()) remark += "note: " + found.remark;
    if (const std::size_t left_out = all.add(found.view, other.folder); left_out > 0)
      remark += fmt::format("note: {} in the tables already, and {} no second row\n", runs_are(left_out, other.folder),
                            left_out == 1 ? "has" : "have");
  }
  view = all.view();
  return remark;
}

}  // namespace kvlab
