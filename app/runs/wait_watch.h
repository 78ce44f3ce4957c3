#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "serving/host_setup.h"

namespace kvlab {

// Passes records on, and counts by the timeline's samples what the requests that wait are short of.
class WaitWatch final : public RunSink {
 public:
  // next: null: records go nowhere.
  WaitWatch(const HostSetup& setup, RunSink* next);
  // "request_slots": the scheduler's most requests of a step run. "kv_memory": else, and less than a tenth of the KV blocks is free or only
  // cached. "steps": neither, so it is the time that steps take. The most frequent of the three over the samples with waiting requests; "":
  // there are none.
  [[nodiscard]] std::string waits_for() const;

  void sample(const TimelineSample& sample) override;
  void request(const RequestRecord& record) override {
    if (next_ != nullptr) next_->request(record);
  }
  void transfer(const TransferRecord& record) override {
    if (next_ != nullptr) next_->transfer(record);
  }
  [[nodiscard]] bool wants_steps() const override { return next_ != nullptr && next_->wants_steps(); }
  void step(const InFlightStep& step, const ReplicaState& state) override { next_->step(step, state); }
  void event(const RequestEventRecord& event) override {
    if (next_ != nullptr) next_->event(event);
  }

 private:
  struct PoolLimits {
    std::uint32_t ranks = 1;        // of all its replicas
    std::int64_t most_running = 0;  // requests of a step; 0: no limit
  };
  [[nodiscard]] const PoolLimits& limits_of(std::uint32_t rank) const;

  RunSink* next_;
  std::vector<PoolLimits> pools_;
  std::array<std::uint64_t, 3> counts_{};
};

}  // namespace kvlab
