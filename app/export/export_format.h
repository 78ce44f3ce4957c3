#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "app/export/exported_run.h"
#include "base/registry.h"

namespace kvlab {

struct ExportOptions {
  double start_s = 0;  // the instant at which the simulation starts, in seconds since 1970, of formats with wall-clock times
};

// The folder that an export is written to. Files that are there are refused, unless the folder is the export's own.
class ExportFolder {
 public:
  ExportFolder(std::filesystem::path folder, bool is_own) : folder_(std::move(folder)), is_own_(is_own) {}
  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }
  void write(const std::filesystem::path& name, std::string_view text);
  void copy(const std::filesystem::path& name, const std::filesystem::path& from);
  [[nodiscard]] bool has(const std::filesystem::path& name) const;
  [[nodiscard]] const std::vector<std::filesystem::path>& written() const { return written_; }
  // A remark for the reader: what the export lacks, and why.
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

// A format of another tool that results are written in. Every value comes from the files of the results; values that they do not have are
// left out.
class ExportFormat {
 public:
  virtual ~ExportFormat() = default;
  // True: each run has a folder of its own. False: one output for all runs of a sweep.
  [[nodiscard]] virtual bool is_per_run() const = 0;
  // source: of one run where the format is per run. InputError where the results cannot be said in the format.
  virtual void write(const ExportSource& source, const ExportOptions& options, ExportFolder& out) const = 0;
};

using ExportFormatRegistry = Registry<ExportFormat>;

}  // namespace kvlab
