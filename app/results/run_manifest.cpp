#include "app/results/run_manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/results/safe_files.h"
#include "app/runs/kinds/run_kind.h"
#include "base/json_text.h"

namespace kvlab {

namespace fs = std::filesystem;

const std::set<std::string>& run_file_names() {
  static const std::set<std::string> names = [] {
    std::set<std::string> all = all_run_tables();
    all.insert({"summary.csv", "resolved.yaml", "manifest.json", kFreshManifest});
    return all;
  }();
  return names;
}

std::set<std::string> RunManifest::file_names() const {
  if (!is_finished || is_numbered) return run_file_names();
  std::set<std::string> names{"manifest.json"};
  for (const auto& [name, digest] : files) names.insert(name);
  return names;
}

RunManifest read_run_manifest(const fs::path& folder) {
  RunManifest manifest;
  if (kind_of(folder / "manifest.json") != PathKind::kFile) return manifest;
  const auto root = read_json_object<nlohmann::json>(folder / "manifest.json");
  if (!root.contains("run") || !root["run"].is_string() || !root.contains("input_key")) return manifest;
  try {
    manifest.is_numbered = root.value("kvlab_run", 1) != kRunFormat;
    manifest.is_finished = manifest.is_numbered || root.value("state", "") == "finished";
    if (!manifest.is_numbered && manifest.is_finished) {
      manifest.code = root.at("code").get<CodeVersion>();
      manifest.files = root.at("files").get<std::map<std::string, std::string>>();
    }
    manifest.id = root["run"].get<std::string>();
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return manifest;
}

std::string damage_of(const fs::path& folder, const RunManifest& manifest) {
  for (const auto& [name, digest] : manifest.files) {
    const fs::path file = folder / name;
    if (kind_without_link(file) != PathKind::kFile) return name + " is missing";
    const std::string size = std::to_string(fs::file_size(file)), wanted = digest.substr(0, digest.find(' '));
    if (size != wanted) return fmt::format("{} has {} of {} bytes", name, size, wanted);
    if (digest_of_file(file) != digest) return name + " has other bytes than were written";
  }
  return "";
}

}  // namespace kvlab
