#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvlab {

// A row of requests.csv; instants in ns from the simulation's start, nullopt if never reached.
struct ExportedRequest {
  std::string request, replica, session, state;
  std::optional<std::int64_t> arrival_ns, queued_ns, scheduled_ns, first_token_ns, last_token_ns;
  std::int64_t prompt_tokens = 0, output_tokens = 0, hit_tokens = 0, preemptions = 0;
  bool is_warm_up = false;  // arrived before 'warmup_ms'

  [[nodiscard]] bool is_completed() const { return state == "completed" && first_token_ns && last_token_ns && arrival_ns; }
  [[nodiscard]] double ttft_ms() const { return static_cast<double>(*first_token_ns - *arrival_ns) * 1e-6; }
  [[nodiscard]] double e2e_ms() const { return static_cast<double>(*last_token_ns - *arrival_ns) * 1e-6; }
  // nullopt for one output token.
  [[nodiscard]] std::optional<double> tpot_ms() const;
};

struct ExportedSample {
  std::string replica;
  std::int64_t time_ns = 0, running = 0, waiting = 0, used_blocks = 0, cached_blocks = 0, free_blocks = 0;
};

// From resolved.yaml: path ("memory.num_blocks") and text.
using ExportedSettings = std::vector<std::pair<std::string, std::string>>;

// Tables are read on demand.
class ExportedRun {
 public:
  // axes: of the sweep, with the run's labels, in grid order.
  ExportedRun(std::filesystem::path folder, std::vector<std::pair<std::string, std::string>> axes);

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& axes() const { return axes_; }
  [[nodiscard]] const nlohmann::ordered_json& manifest() const { return manifest_; }
  // The first row of summary.csv.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& summary() const { return summary_; }
  // nullopt if absent, empty or not a number.
  [[nodiscard]] std::optional<double> number(const std::string& column) const;
  [[nodiscard]] std::string text(const std::string& column) const;
  [[nodiscard]] const ExportedSettings& settings() const { return settings_; }
  [[nodiscard]] std::string setting(const std::string& path) const;  // "" if absent

  // Throws InputError if requests.csv is missing or empty.
  [[nodiscard]] std::vector<ExportedRequest> requests() const;
  [[nodiscard]] std::vector<ExportedSample> samples() const;  // may be empty

 private:
  std::filesystem::path folder_;
  std::string id_;
  std::vector<std::pair<std::string, std::string>> axes_, summary_;
  nlohmann::ordered_json manifest_;
  ExportedSettings settings_;
};

struct ExportSource {
  std::filesystem::path folder;
  std::string experiment;
  std::vector<ExportedRun> runs;  // newest sweep in grid order, without repetition
  std::size_t num_included = 0;   // by 'include_results'; not exported
};

// ids: empty: all. Throws InputError if this is not a results folder, or a run is unknown.
ExportSource read_export_source(const std::filesystem::path& folder, const std::vector<std::string>& ids);

}  // namespace kvlab
