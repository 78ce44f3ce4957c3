#pragma once

#include <utility>

#include "app/results/run_files.h"
#include "app/runs/progress.h"
#include "app/runs/run_kind.h"

namespace kvlab {

// Passes a run's records on, counts them for the progress bar, and ends the run when the user asks.
class WatchedSink final : public RunSink {
 public:
  WatchedSink(RunSink* files, RunOptions options, ServingProgress* progress = nullptr)
      : files_(files), options_(std::move(options)), progress_(progress) {}
  void request(const RequestRecord& record) override {
    options_.check_stop();
    if (options_.requests_done != nullptr) options_.requests_done->fetch_add(1, std::memory_order_relaxed);
    if (progress_ != nullptr) progress_->request_done();
    if (files_ != nullptr) files_->request(record);
  }
  void sample(const TimelineSample& sample) override {
    if (files_ != nullptr) files_->sample(sample);
  }
  [[nodiscard]] bool wants_steps() const override { return files_ != nullptr && files_->wants_steps(); }
  void step(const StepRecord& step) override { files_->step(step); }
  void event(const RequestEventRecord& event) override {
    if (files_ != nullptr) files_->event(event);
  }

 private:
  RunSink* files_;
  RunOptions options_;
  ServingProgress* progress_;
};

}  // namespace kvlab
