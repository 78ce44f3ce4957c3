#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "traces/arrivals.h"
#include "traces/trace.h"

namespace kvlab {

// 0: no limit.
struct TraceShape {
  std::string name = "trace";                                 // for messages
  std::uint64_t offset = 0;                                   // skipped requests; the next arrival becomes 0
  std::uint64_t limit_requests = 0;                           // after these
  std::int32_t max_prompt_tokens = 0, max_output_tokens = 0;  // longer ones are cut and counted
  std::unique_ptr<ArrivalProcess> arrivals;                   // null: the trace's
};

// Skips and counts follow-ups of sessions that `offset` skipped. Cut prompts keep whole chunks' hashes.
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
  bool arrive(TraceRequest& request);
  void give_class(TraceRequest& request);
  void cut(TraceRequest& request);

  std::unique_ptr<TraceSource> source_;
  TraceShape shape_;
  bool is_past_offset_ = false;
  std::deque<RequestFacts> facts_;     // with the class; all are kept if the source keeps its own
  std::optional<Time> first_arrival_;  // if `offset` > 0
  std::uint64_t num_given_ = 0, num_cut_prompts_ = 0, num_cut_outputs_ = 0, num_orphans_ = 0;
};

}  // namespace kvlab
