#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "traces/arrivals.h"
#include "traces/trace.h"

namespace kvlab {

// The part of a trace to take, and changes to it. 0: no limit.
struct TraceShape {
  std::string name = "trace";                                 // of the trace, for messages
  std::uint64_t offset = 0;                                   // requests to leave out at the start; the next one's arrival becomes 0
  std::uint64_t limit_requests = 0;                           // how many to take after those
  std::int32_t max_prompt_tokens = 0, max_output_tokens = 0;  // longer ones are cut, and counted in skipped()
  std::unique_ptr<ArrivalProcess> arrivals;                   // replaces the trace's own; null: as they are
};

// A stream over another stream. A follow-up whose session's start was left out by `offset` is left out as well, and
// counted. Cutting a prompt cuts its hashes to whole chunks of the remaining prompt.
class ShapedTrace final : public TraceSource {
 public:
  ShapedTrace(std::unique_ptr<TraceSource> source, TraceShape shape) : source_(std::move(source)), shape_(std::move(shape)) {}

  bool next(TraceRequest& request) override;
  [[nodiscard]] bool keeps_hashes() const override { return source_->keeps_hashes(); }
  [[nodiscard]] std::int32_t concurrency() const override;
  [[nodiscard]] Span think_time(std::uint64_t session_index) const override;
  [[nodiscard]] Span ramp() const override { return shape_.arrivals ? shape_.arrivals->ramp() : source_->ramp(); }
  [[nodiscard]] Span idle_cap() const override { return shape_.arrivals ? shape_.arrivals->idle_cap() : source_->idle_cap(); }
  [[nodiscard]] std::string skipped() const override;
  [[nodiscard]] std::string remark() const override { return source_->remark(); }

 private:
  void cut(TraceRequest& request);

  std::unique_ptr<TraceSource> source_;
  TraceShape shape_;
  bool is_past_offset_ = false;
  std::optional<Time> first_arrival_;  // of the requests taken, where `offset` leaves some out
  std::uint64_t num_given_ = 0, num_cut_prompts_ = 0, num_cut_outputs_ = 0, num_orphans_ = 0;
};

}  // namespace kvlab
