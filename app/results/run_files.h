#pragma once

#include <filesystem>
#include <map>
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

// A run's folder under a temporary name; removed unless published.
class FreshRun {
 public:
  FreshRun(std::filesystem::path runs, std::string id);
  FreshRun(FreshRun&& other) noexcept;
  FreshRun& operator=(FreshRun&&) = delete;
  ~FreshRun();
  [[nodiscard]] const std::string& id() const { return id_; }
  // Path of a file, which is removed with the folder.
  std::filesystem::path add(const std::string& name);
  void rename(const std::string& from, const std::string& to);

  // Waits until its files are on disk.
  void sync() const;
  // Gives it its name. Replaces an earlier folder, keeping its foreign files. Does not sync `runs`.
  void publish();

 private:
  std::filesystem::path runs_, path_;  // path: "" once published or moved
  std::string id_;
  std::set<std::string> names_;
};

// Syncs it, then publishes it.
void publish_at_once(FreshRun run);

class RunFiles final : public RunSink {
 public:
  // tables: files to write. times_policy: adds the KV policy's time to requests.csv.
  RunFiles(std::filesystem::path runs, std::string id, const std::set<std::string>& tables, bool times_policy = false);
  ~RunFiles() override;
  [[nodiscard]] const std::string& id() const { return fresh_.id(); }

  void request(const RequestRecord& record) override;
  void sample(const TimelineSample& sample) override;
  [[nodiscard]] bool wants_steps() const override { return perfetto_ != nullptr; }
  void step(const InFlightStep& step, const ReplicaState& state) override;
  void event(const EventRecord& event) override;
  void transfer(const TransferRecord& record) override;

  // Writes at once.
  void add_file(const std::string& name, const std::string& text);
  void copy_file(const std::string& name, const std::filesystem::path& from);
  // Writes the manifest. Call it last.
  [[nodiscard]] FreshRun finish(nlohmann::ordered_json manifest);

 private:
  void write_groups(const RequestRecord& record);  // client and class
  void close(const std::string& name, TextFile* file);
  FreshRun fresh_;
  std::map<std::string, std::string> digests_;  // of closed files
  bool times_policy_;
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
