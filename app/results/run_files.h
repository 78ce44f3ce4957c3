#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "app/results/text_file.h"
#include "app/runs/summary_row.h"
#include "serving/metrics.h"

namespace kvlab {

class PerfettoFile;

// The folder of one run while it is being written. It appears under its name, complete, with commit(); until then, and if
// commit() is never called, its files are in a folder beside it that is removed.
class RunFiles final : public RunSink {
 public:
  // runs: the folder of all runs; prefix of each row: the run's id. tables: names of the files that the run writes; those on requests, with
  // the trace for Perfetto, are opened. times_policy: requests.csv has the columns of the KV policy's time.
  RunFiles(std::filesystem::path runs, std::string id, const std::set<std::string>& tables, bool times_policy = false);
  ~RunFiles() override;
  [[nodiscard]] const std::string& id() const { return id_; }

  void request(const RequestRecord& record) override;
  void sample(const TimelineSample& sample) override;
  [[nodiscard]] bool wants_steps() const override { return perfetto_ != nullptr; }
  void step(const InFlightStep& step, const ReplicaState& state) override;
  void event(const RequestEventRecord& event) override;
  void transfer(const TransferRecord& record) override;

  // A further file of this run, written at once.
  void add_file(const std::string& name, const std::string& text);
  // A copy of a file of an earlier run.
  void copy_file(const std::string& name, const std::filesystem::path& from);
  // Ends the files and puts the folder in place of an earlier one once all of them are on the disk; the sweep syncs the names in `runs`.
  // The manifest is written last, with sizes and fingerprints of the others. Files in the earlier folder that are not the earlier run's
  // stay.
  void commit(nlohmann::ordered_json manifest);

 private:
  std::filesystem::path make(const std::string& name);
  void write_groups(const RequestRecord& record);  // its client and its class, where it has one
  std::filesystem::path runs_, fresh_;
  std::string id_;
  bool times_policy_;
  std::set<std::string> names_;  // of the files so far
  std::unique_ptr<TextFile> requests_, timeline_, transfers_, groups_;
  std::unique_ptr<PerfettoFile> perfetto_;
};

// In resolved.yaml of a run, before the comments that list the defaults.
inline constexpr const char* kDefaultsTitle = "\n# defaults in force:\n";

// Removes the remains of interrupted runs from the folder of all runs. Returns their number.
std::size_t remove_leftovers(const std::filesystem::path& runs);
// True for such a leftover, told by its name and by a manifest that says so, or by nothing being written yet.
bool is_leftover(const std::filesystem::path& folder);

// summary.csv of one run: header and rows of the same columns, without a sweep's axes.
std::string summary_csv(const std::string& run_id, std::uint64_t seed, const std::vector<Fields>& rows);

}  // namespace kvlab
