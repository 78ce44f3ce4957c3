#include "app/results/results_info.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "app/results/code_version.h"
#include "app/results/run_folder.h"
#include "app/results/safe_files.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"

namespace kvlab {

namespace fs = std::filesystem;
using InfoJson = nlohmann::json;

namespace {

// 'kind' or 'host' may be a list.
std::string kind_of_results(const fs::path& folder) {
  YAML::Node root;
  try {
    root = YAML::LoadFile((folder / "resolved.yaml").string());
  } catch (const YAML::Exception&) {
    return "";
  }
  const YAML::Node kind = root["kind"], host = root["host"];
  if (kind.IsDefined() && kind.IsScalar()) return kind.Scalar();
  if (!host.IsDefined()) return "simulation";
  if (host.IsSequence()) {
    std::vector<std::string> hosts;
    for (const auto& one : host) hosts.push_back(one.IsScalar() ? one.Scalar() : "?");
    return join(hosts, ", ");
  }
  const std::string name = host.IsScalar() ? host.Scalar() : "?";
  return name == "sim" ? "simulation" : name == "engine" ? (root["trace"].IsDefined() ? "serving" : "accuracy") : name;
}

std::uintmax_t bytes_in(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code vanished;
    if (at->is_regular_file(vanished) && !at->is_symlink(vanished)) {
      const std::uintmax_t size = at->file_size(vanished);
      if (!vanished) bytes += size;
    }
  }
  return bytes;
}

std::set<std::string> sweep_of(const InfoJson& marker) {
  std::set<std::string> ids;
  if (!marker.is_object() || !marker.contains("sweep") || !marker["sweep"].is_array()) return ids;
  for (const InfoJson& id : marker["sweep"])
    if (id.is_string()) ids.insert(id.get<std::string>());
  return ids;
}

void count_runs(const InfoJson& marker, ResultsInfo& info) {
  const std::set<std::string> sweep = sweep_of(marker);
  info.num_runs = sweep.size();
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(info.folder / "runs", error)) {
    const std::string id = entry.path().filename().string();
    if (id.starts_with(".")) continue;
    const bool is_complete = fs::exists(entry.path() / "manifest.json", error);  // written last
    if (sweep.contains(id))
      info.num_finished += is_complete ? 1 : 0;
    else
      info.num_unused += is_complete ? 1 : 0;
  }
}

std::string text_in(const InfoJson& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

bool is_results_folder(const fs::path& folder) {
  if (kind_of(folder) != PathKind::kFolder) return false;
  if (kind_of(folder / ".kvlab.json") == PathKind::kFile) return true;
  return text_in(read_json_object<InfoJson>(folder / "manifest.json"), "program").starts_with("kvlab ");
}

ResultsInfo read_results_info(const fs::path& folder) {
  if (!is_results_folder(folder)) throw InputError(folder.string() + ": is no results folder of kvlab");
  const auto marker = read_json_object<InfoJson>(folder / ".kvlab.json"), top = read_json_object<InfoJson>(folder / "manifest.json");
  ResultsInfo info;
  info.folder = folder;
  info.experiment = text_in(top, "experiment");
  info.file = text_in(top, "file");
  info.finished = text_in(top, "finished");
  info.kind = text_in(top, "kind").empty() ? kind_of_results(folder) : text_in(top, "kind");
  info.has_other_code = !text_in(top, "code").empty() && text_in(top, "code") != code_version({}).at("core");
  count_runs(marker, info);
  info.bytes = bytes_in(folder);
  return info;
}

ResultsFound results_in(const fs::path& folder) {
  ResultsFound found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_results_folder(entry.path()))
      found.folders.push_back(entry.path());
    else
      ++found.num_others;
  }
  std::sort(found.folders.begin(), found.folders.end());
  return found;
}

fs::path find_results(const std::string& named) {
  if (is_results_folder(named)) return named;
  const fs::path below = fs::path(kResultsRoot) / named;
  if (named.find('/') == std::string::npos && is_results_folder(below)) return below;
  std::vector<std::string> known;
  for (const fs::path& folder : results_in(kResultsRoot).folders) known.push_back(folder.filename().string());
  const std::string meant = did_you_mean(fs::path(named).filename().string(), known);
  throw InputError(fmt::format("there are no results '{}'{}", named, meant.empty() ? "; kvlab results lists those that there are" : meant));
}

std::string size_text(std::uintmax_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"B", "KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

}  // namespace kvlab
