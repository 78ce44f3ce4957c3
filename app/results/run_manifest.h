#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "app/results/code_version.h"

namespace kvlab {

// The content of manifest.json in runs/ID of a complete run. For results without identifiers (runs/0001) no files are listed.
struct RunManifest {
  std::string id;
  CodeVersion code;
  std::map<std::string, std::string> files;  // name -> digest
  bool is_finished = false;                  // false: the run that writes them was cut off, or is still running
  bool is_numbered = false;                  // runs/0001 of a version that numbered its runs
  [[nodiscard]] bool is_ours() const { return !id.empty(); }
  [[nodiscard]] std::set<std::string> file_names() const;
};

inline constexpr int kRunFormat = 2;
inline constexpr const char* kFreshManifest = "manifest.new";  // until it is complete

// Without an id: there is no manifest, or none that kvlab wrote.
RunManifest read_run_manifest(const std::filesystem::path& folder);

// The first of its files that is not as the manifest says: "requests.csv is missing"; "" where all are.
std::string damage_of(const std::filesystem::path& folder, const RunManifest& manifest);

// Files that a run may write, its manifest included: what a run that was cut off may have left.
const std::set<std::string>& run_file_names();

}  // namespace kvlab
