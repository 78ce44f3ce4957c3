#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "app/results/safe_files.h"
#include "app/runs/report/summary_row.h"
#include "serving/metrics.h"

namespace kvlab {

class PerfettoFile;

// Omitted with `output: {keep: summary}`.
inline const std::set<std::string> kTablesOfMany = {"requests.csv", "timeline.csv", "transfers.csv", "request_groups.csv"};

// Becomes visible, complete, by commit(); otherwise it is removed.
class RunFiles final : public RunSink {
 public:
  // tables: files to write. times_policy: adds the KV policy's time to requests.csv.
  RunFiles(std::filesystem::path runs, std::string id, const std::set<std::string>& tables, bool times_policy = false);
  ~RunFiles() override;
  [[nodiscard]] const std::string& id() const { return id_; }

  void request(const RequestRecord& record) override;
  void sample(const TimelineSample& sample) override;
  [[nodiscard]] bool wants_steps() const override { return perfetto_ != nullptr; }
  void step(const InFlightStep& step, const ReplicaState& state) override;
  void event(const EventRecord& event) override;
  void transfer(const TransferRecord& record) override;

  // Writes at once.
  void add_file(const std::string& name, const std::string& text);
  void copy_file(const std::string& name, const std::filesystem::path& from);
  // Writes the manifest, syncs the files, and replaces an earlier folder, keeping its foreign files. Does not sync `runs`.
  void commit(nlohmann::ordered_json manifest);

 private:
  std::filesystem::path make(const std::string& name);
  void write_groups(const RequestRecord& record);  // client and class
  std::filesystem::path runs_, fresh_;
  std::string id_;
  bool times_policy_;
  std::set<std::string> names_;
  std::unique_ptr<TextFile> requests_, timeline_, transfers_, groups_;
  std::unique_ptr<PerfettoFile> perfetto_;
};

// Precedes the defaults in resolved.yaml.
inline constexpr const char* kDefaultsTitle = "\n# defaults in force:\n";

// Remains of interrupted runs. Returns their number.
std::size_t remove_leftovers(const std::filesystem::path& runs);
// By name and by an unfinished manifest or an empty folder.
bool is_leftover(const std::filesystem::path& folder);

// Without axes. Rows have the same columns.
std::string summary_csv(const std::string& run_id, std::uint64_t seed, const std::vector<Fields>& rows);

}  // namespace kvlab
