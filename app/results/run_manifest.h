#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "app/results/code_version.h"

namespace kvlab {

// manifest.json of a complete run. Numbered runs list no files.
struct RunManifest {
  std::string id;
  CodeVersion code;
  std::map<std::string, std::string> files;
  bool is_finished = false;  // false: interrupted or running
  bool is_numbered = false;  // runs/0001 of an earlier version
  [[nodiscard]] bool is_ours() const { return !id.empty(); }
  [[nodiscard]] std::set<std::string> file_names() const;
};

inline constexpr int kRunFormat = 2;
inline constexpr const char* kFreshManifest = "manifest.new";  // while incomplete

// The id is empty if kvlab wrote no manifest.
RunManifest read_run_manifest(const std::filesystem::path& folder);

// First mismatch, "requests.csv is missing", or "".
std::string damage_of(const std::filesystem::path& folder, const RunManifest& manifest);

const std::set<std::string>& run_file_names();

}  // namespace kvlab
