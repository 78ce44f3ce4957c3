#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace kvlab {

// A trace held as flat arrays: 16 bytes per request, 8 more where the trace has sessions, and its hashes in one pool; where a
// request has facts, their size for each. Can be
// read again and again, and in any order.
class InMemoryTrace final : public TraceSource {
 public:
  // Reads `source` to its end and keeps it, for its think times.
  explicit InMemoryTrace(std::unique_ptr<TraceSource> source);

  bool next(TraceRequest& request) override;
  [[nodiscard]] bool keeps_hashes() const override { return true; }
  [[nodiscard]] std::int32_t concurrency() const override { return source_->concurrency(); }
  [[nodiscard]] Span think_time(std::uint64_t session_index) const override { return source_->think_time(session_index); }
  [[nodiscard]] Span ramp() const override { return source_->ramp(); }
  [[nodiscard]] Span idle_cap() const override { return source_->idle_cap(); }
  [[nodiscard]] std::string skipped() const override { return source_->skipped(); }
  [[nodiscard]] std::string remark() const override { return source_->remark(); }

  void rewind() { next_ = 0; }
  [[nodiscard]] std::size_t size() const { return prompt_tokens_.size(); }
  [[nodiscard]] TraceRequest at(std::size_t i) const;  // in the order of next()
  [[nodiscard]] std::size_t memory_bytes() const;

  // Moves the arrival of request i, which is no follow-up; sort_by_arrival() afterwards.
  void set_arrival(std::size_t i, Time arrival);
  // Stable order of arrival. Follow-ups go directly after the request of their session before them, wherever they were. If the earliest
  // arrival is before the trace's start, all move so that it is at the start. Rewinds.
  void sort_by_arrival();

 private:
  void append(const TraceRequest& request);
  void set_hash_tokens(std::int32_t hash_tokens);
  [[nodiscard]] std::size_t stored(std::size_t i) const { return order_.empty() ? i : order_[i]; }

  std::unique_ptr<TraceSource> source_;
  // For a follow-up the delay, stored as -1 - delay; for others the arrival plus kArrivalShift, which is never negative.
  std::vector<std::int64_t> when_ns_;
  std::vector<std::int32_t> prompt_tokens_, output_tokens_;
  std::vector<std::int64_t> session_;         // empty where no request has one
  std::vector<std::uint64_t> hashes_;         // of all requests, one after the other
  std::vector<std::uint64_t> hashes_end_;     // [size]; empty where no request has hashes
  std::vector<std::int32_t> hash_tokens_of_;  // empty while every request with hashes has the same, hash_tokens_
  std::int32_t hash_tokens_ = 0;
  std::vector<RequestFacts> facts_;   // empty where no request has any
  std::vector<bool> has_facts_;       // likewise
  std::vector<std::uint32_t> order_;  // empty: as stored
  std::size_t next_ = 0;
};

}  // namespace kvlab
