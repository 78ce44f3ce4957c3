#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "app/export/exported_run.h"
#include "base/config/registry.h"

namespace kvlab {

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
