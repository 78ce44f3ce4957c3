#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "app/runs/report/forwarding_sink.h"
#include "serving/host_setup.h"

namespace kvlab {

class WaitWatch final : public ForwardingSink {
 public:
  // next: null drops records.
  WaitWatch(const HostSetup& setup, RunSink* next);
  // "request_slots": the step has the scheduler's maximum of requests. "kv_memory": otherwise, if fewer than 10 % of KV blocks are free or
  // only cached. "steps": neither. The most frequent over samples with waiting requests, or "".
  [[nodiscard]] std::string waits_for() const;

  void sample(const TimelineSample& sample) override;

 private:
  struct PoolLimits {
    std::uint32_t ranks = 1;        // over its replicas
    std::int64_t most_running = 0;  // per step; 0: no limit
  };
  [[nodiscard]] const PoolLimits& limits_of(std::uint32_t rank) const;

  std::vector<PoolLimits> pools_;
  std::array<std::uint64_t, 3> counts_{};
};

}  // namespace kvlab
