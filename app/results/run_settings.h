#pragma once

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <map>
#include <string>

namespace kvlab {

// From a finished run's resolved.yaml.
struct RunSettings {
  YAML::Node tree;                              // undefined if unreadable
  std::map<std::string, std::string> defaults;  // "scheduler.sarathi.budget_tokens" -> value, for keys that the file lacks
};

RunSettings parse_run_settings(const std::string& text);

RunSettings read_run_settings(const std::filesystem::path& run);

// Value at "trace.arrival.poisson.rate_per_s", or undefined.
YAML::Node node_at(const YAML::Node& tree, const std::string& path);

}  // namespace kvlab
