#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/results/run_folder.h"
#include "base/config/registry.h"

namespace kvlab {

// Without the warm-up.
struct LatencyValues {
  std::vector<double> ttft, tpot, e2e;  // ms, of completed requests
  std::int64_t completed = 0, failed = 0;
  std::int64_t prompt_tokens = 0, output_tokens = 0;  // of completed requests
};
LatencyValues latency_values(const std::vector<RequestRow>& requests);

struct ExportedSample {
  std::string replica;
  std::int64_t time_ns = 0, running = 0, waiting = 0, used_blocks = 0, cached_blocks = 0, free_blocks = 0;
};

// From resolved.yaml: path ("memory.num_blocks") and text.
using ExportedSettings = std::vector<std::pair<std::string, std::string>>;

// Tables are read on demand.
struct ExportedRun {
  // labels: of the sweep's axes, with the run's labels, in grid order.
  ExportedRun(std::filesystem::path run, std::vector<std::pair<std::string, std::string>> labels);

  // nullopt if absent, empty or not a number.
  [[nodiscard]] std::optional<double> number(const std::string& column) const;
  [[nodiscard]] std::string text(const std::string& column) const;
  [[nodiscard]] std::string setting(const std::string& path) const;  // "" if absent

  // Throws InputError if requests.csv is missing or empty.
  [[nodiscard]] std::vector<RequestRow> requests() const;
  [[nodiscard]] std::vector<ExportedSample> samples() const;  // may be empty

  std::filesystem::path folder;
  std::string id;
  std::vector<std::pair<std::string, std::string>> axes, summary;  // summary: the first row of summary.csv
  nlohmann::ordered_json manifest;
  ExportedSettings settings;
};

struct ExportSource {
  std::filesystem::path folder;
  std::string experiment;
  std::vector<ExportedRun> runs;  // newest sweep in grid order, without repetition
  std::size_t num_included = 0;   // by 'include_results'; not exported
};

// ids: empty: all. Throws InputError if this is not a results folder, or a run is unknown.
ExportSource read_export_source(const std::filesystem::path& folder, const std::vector<std::string>& ids);

struct ExportOptions {
  double start_s = 0;  // of the simulation, in seconds since 1970
};

// Refuses to replace files unless the folder is the export's.
class ExportFolder {
 public:
  ExportFolder(std::filesystem::path folder, bool is_own) : folder_(std::move(folder)), is_own_(is_own) {}
  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }
  void write(const std::filesystem::path& name, std::string_view text);
  void copy(const std::filesystem::path& name, const std::filesystem::path& from);
  [[nodiscard]] bool has(const std::filesystem::path& name) const;
  [[nodiscard]] const std::vector<std::filesystem::path>& written() const { return written_; }
  // For something that the export lacks.
  void note(std::string text) { notes_.push_back(std::move(text)); }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  [[nodiscard]] ExportFolder below(const std::string& name) const { return {folder_ / name, is_own_}; }

 private:
  std::filesystem::path make(const std::filesystem::path& name);
  std::filesystem::path folder_;
  bool is_own_;
  std::vector<std::filesystem::path> written_;
  std::vector<std::string> notes_;
};

// Values come from the results' files; missing ones are omitted.
class ExportFormat {
 public:
  virtual ~ExportFormat() = default;
  // False: one output for all runs.
  [[nodiscard]] virtual bool is_per_run() const = 0;
  // source: a single run if is_per_run(). Throws InputError if the format cannot express the results.
  virtual void write(const ExportSource& source, const ExportOptions& options, ExportFolder& out) const = 0;
};

using ExportFormatRegistry = Registry<ExportFormat>;

}  // namespace kvlab
