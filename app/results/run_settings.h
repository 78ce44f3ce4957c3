#pragma once

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <map>
#include <string>

namespace kvlab {

// The settings that a finished run had, from the resolved.yaml in its folder.
struct RunSettings {
  YAML::Node tree;                              // undefined where the file cannot be read
  std::map<std::string, std::string> defaults;  // "scheduler.sarathi.budget_tokens" -> the value in force, of keys that the file lacks
};

// From the text of a resolved.yaml.
RunSettings parse_run_settings(const std::string& text);

RunSettings read_run_settings(const std::filesystem::path& run);

// The value at a path such as "trace.arrival.poisson.rate_per_s"; undefined where the tree has none.
YAML::Node node_at(const YAML::Node& tree, const std::string& path);

}  // namespace kvlab
