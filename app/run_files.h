#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/experiment.h"
#include "app/summary_row.h"
#include "app/text_file.h"
#include "serving/metrics.h"

namespace kvlab {

class PerfettoFile;

// The folder of one run while it is being written. It appears under its name, complete, with commit(); until then, and if
// commit() is never called, its files lie in a folder beside it that is removed.
class RunFiles final : public RunSink {
 public:
  // What is written of requests: their tables and samples, a trace for Perfetto besides, or nothing.
  enum class Tables : std::uint8_t { kNone, kRequests, kPerfetto };
  // runs: the folder of all runs; prefix of each row: run number.
  RunFiles(std::filesystem::path runs, std::string id, Tables tables);
  ~RunFiles() override;

  void request(const RequestRecord& record) override;
  void sample(const TimelineSample& sample) override;
  [[nodiscard]] bool wants_steps() const override { return perfetto_ != nullptr; }
  void step(const StepRecord& step) override;
  void event(const RequestEventRecord& event) override;

  // A further file of this run, written at once.
  void add_file(const std::string& name, const std::string& text);
  // Ends the files and puts the folder in place of an earlier one. manifest: JSON text, written last.
  void commit(const std::string& manifest);

 private:
  std::filesystem::path runs_, fresh_;
  std::string id_;
  std::unique_ptr<TextFile> requests_, timeline_;
  std::unique_ptr<PerfettoFile> perfetto_;
};

// The column of an axis: its path in the YAML.
std::string axis_column(const std::string& path);

// summary.csv of one run: header and row.
std::string summary_csv(const Experiment& experiment, const RunSpec& run, const Fields& fields);

}  // namespace kvlab
