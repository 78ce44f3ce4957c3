#pragma once

#include <cstdint>
#include <filesystem>
#include <set>

#include "app/results/text_file.h"
#include "serving/metrics.h"

namespace kvlab {

// trace.json in the Chrome trace event format, for ui.perfetto.dev: one process per replica, with a track of steps (their
// batch as arguments), counters, and preemptions, departures and arrivals of KV as instants; request lifetimes and transfers of KV as
// asynchronous events. Written as it comes, so memory does not grow with the run. Times in the file are microseconds. Format: "Trace Event
// Format" (Google, 2016), phases X, b, e, i, C and M.
class PerfettoFile {
 public:
  explicit PerfettoFile(const std::filesystem::path& path);
  void step(const InFlightStep& step, const ReplicaState& state);
  void event(const RequestEventRecord& event);
  void request(const RequestRecord& record);
  void sample(const TimelineSample& sample);
  void transfer(const TransferRecord& record);
  void close();

 private:
  void name_replica(std::uint32_t replica);
  void begin_entry();
  TextFile file_;
  bool is_first_ = true;
  std::set<std::uint32_t> named_;
};

}  // namespace kvlab
