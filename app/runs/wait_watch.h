#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "app/runs/forwarding_sink.h"
#include "serving/host_setup.h"

namespace kvlab {

// Passes records on, and counts by the timeline's samples what the requests that wait are short of.
class WaitWatch final : public ForwardingSink {
 public:
  // next: null: records go nowhere.
  WaitWatch(const HostSetup& setup, RunSink* next);
  // "request_slots": the scheduler's most requests of a step run. "kv_memory": else, and less than a tenth of the KV blocks is free or only
  // cached. "steps": neither, so it is the time that steps take. The most frequent of the three over the samples with waiting requests; "":
  // there are none.
  [[nodiscard]] std::string waits_for() const;

  void sample(const TimelineSample& sample) override;

 private:
  struct PoolLimits {
    std::uint32_t ranks = 1;        // of all its replicas
    std::int64_t most_running = 0;  // requests of a step; 0: no limit
  };
  [[nodiscard]] const PoolLimits& limits_of(std::uint32_t rank) const;

  std::vector<PoolLimits> pools_;
  std::array<std::uint64_t, 3> counts_{};
};

}  // namespace kvlab
