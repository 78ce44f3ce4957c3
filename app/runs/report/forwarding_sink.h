#pragma once

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

}  // namespace kvlab
