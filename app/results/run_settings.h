#pragma once

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <map>
#include <string>

namespace kvlab {

// From resolved.yaml.
struct RunSettings {
  YAML::Node tree;                              // undefined if unreadable
  std::map<std::string, std::string> defaults;  // "scheduler.sarathi.budget_tokens" -> value

  [[nodiscard]] bool has(const std::string& path) const;          // given
  [[nodiscard]] std::string text(const std::string& path) const;  // given or default, or ""
};

RunSettings parse_run_settings(const std::string& text);

RunSettings read_run_settings(const std::filesystem::path& run);

// Undefined if absent. path: "trace.arrival.poisson.rate_per_s".
YAML::Node node_at(const YAML::Node& tree, const std::string& path);

}  // namespace kvlab
