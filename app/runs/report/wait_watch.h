#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "serving/host_setup.h"
#include "serving/metrics.h"

namespace kvlab {

// null: drops records.
class ForwardingSink : public RunSink {
 public:
  explicit ForwardingSink(RunSink* next) : next_(next) {}
  void request(const RequestRecord& record) override {
    if (next_ != nullptr) next_->request(record);
  }
  void sample(const TimelineSample& sample) override {
    if (next_ != nullptr) next_->sample(sample);
  }
  [[nodiscard]] bool wants_steps() const override { return next_ != nullptr && next_->wants_steps(); }
  void step(const InFlightStep& step, const ReplicaState& state) override { next_->step(step, state); }
  void event(const EventRecord& event) override {
    if (next_ != nullptr) next_->event(event);
  }
  void transfer(const TransferRecord& record) override {
    if (next_ != nullptr) next_->transfer(record);
  }

 private:
  RunSink* next_;
};

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
