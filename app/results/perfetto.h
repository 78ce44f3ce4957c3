#pragma once

#include <cstdint>
#include <filesystem>
#include <set>

#include "app/results/text_file.h"
#include "serving/metrics.h"

namespace kvlab {

// trace.json for ui.perfetto.dev ("Trace Event Format", Google, 2016; phases X, b, e, i, C and M), in microseconds. Each replica is a
// process with steps, counters and instants; requests and KV transfers are asynchronous events. Streams with constant memory.
class PerfettoFile {
 public:
  explicit PerfettoFile(const std::filesystem::path& path);
  void step(const InFlightStep& step, const ReplicaState& state);
  void event(const EventRecord& event);
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
