#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

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

// From resolved.yaml.
struct RunSettings {
  YAML::Node tree;                              // undefined if unreadable
  std::map<std::string, std::string> defaults;  // "scheduler.sarathi.budget_tokens" -> value

  [[nodiscard]] bool has(const std::string& path) const;          // given
  [[nodiscard]] std::string text(const std::string& path) const;  // given or default, or ""
};

RunSettings parse_run_settings(const std::string& text);

RunSettings read_run_settings(const std::filesystem::path& run);

// A scalar, or the only key of a mapping, as in `scheduler: orca` and `scheduler: {orca: {...}}`; else "".
std::string name_in(const YAML::Node& node);

// Undefined if absent. path: "trace.arrival.poisson.rate_per_s".
YAML::Node node_at(const YAML::Node& tree, const std::string& path);

// A row of requests.csv; instants in ns from the simulation's start, nullopt if never reached.
struct RequestRow {
  std::string request, replica, session, state;
  std::optional<std::int64_t> arrival_ns, queued_ns, scheduled_ns, first_token_ns, last_token_ns;
  std::int64_t prompt_tokens = 0, output_tokens = 0, hit_tokens = 0, preemptions = 0;
  double prefill_policy_ns = 0, decode_policy_ns = 0;  // of the KV policy; 0: not measured
  bool is_warm_up = false;                             // arrived before 'warmup_ms'; set by the reader's caller

  [[nodiscard]] bool is_completed() const { return state == "completed" && first_token_ns && last_token_ns && arrival_ns; }
  [[nodiscard]] double ttft_ms() const { return static_cast<double>(*first_token_ns - *arrival_ns) * 1e-6; }
  [[nodiscard]] double e2e_ms() const { return static_cast<double>(*last_token_ns - *arrival_ns) * 1e-6; }
  // nullopt for one output token.
  [[nodiscard]] std::optional<double> tpot_ms() const;
};

// Throws InputError if the file is absent, lacks a column or has a field that is not a number.
std::vector<RequestRow> read_request_rows(const std::filesystem::path& file);

}  // namespace kvlab
