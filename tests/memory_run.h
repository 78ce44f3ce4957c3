#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "serving/step.h"
#include "sim/simulation.h"
#include "traces/trace.h"

namespace kvlab::test {

// A trace in memory.
class VectorTrace final : public TraceSource {
 public:
  explicit VectorTrace(std::vector<TraceRequest> requests, std::int32_t concurrency = 0)
      : requests_(std::move(requests)), concurrency_(concurrency) {}
  bool next(TraceRequest& request) override {
    if (at_ == requests_.size()) return false;
    request = requests_[at_++];
    return true;
  }
  [[nodiscard]] bool keeps_hashes() const override { return true; }
  [[nodiscard]] ClosedLoop closed_loop() const override { return {concurrency_}; }

 private:
  std::vector<TraceRequest> requests_;
  std::int32_t concurrency_;
  std::size_t at_ = 0;
};

inline TraceRequest request_at(double arrival_ms, std::int32_t prompt, std::int32_t output) {
  TraceRequest r;
  r.arrival = kStart + Span(static_cast<std::int64_t>(arrival_ms * 1e6));
  r.prompt_tokens = prompt;
  r.output_tokens = output;
  return r;
}

// Keeps everything a run delivers.
struct Recorder final : RunSink {
  void request(const RequestRecord& r) override { requests.push_back(r); }
  void sample(const TimelineSample& s) override { samples.push_back(s); }
  void transfer(const TransferRecord& t) override { transfers.push_back(t); }
  [[nodiscard]] bool wants_steps() const override { return keep_steps; }
  void step(const InFlightStep& s, const ReplicaState&) override { steps.push_back(s); }
  void event(const EventRecord& e) override { events.push_back(e); }
  std::vector<RequestRecord> requests;
  std::vector<TimelineSample> samples;
  std::vector<InFlightStep> steps;
  std::vector<EventRecord> events;
  std::vector<TransferRecord> transfers;
  bool keep_steps = false;
};

}  // namespace kvlab::test
