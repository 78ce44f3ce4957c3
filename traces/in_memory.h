#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace kvlab {

// 16 bytes per request, 8 more with sessions, facts if any, a pool of hashes. Rereadable in any order.
class InMemoryTrace final : public TraceSource {
 public:
  // Keeps `source` for think times.
  explicit InMemoryTrace(std::unique_ptr<TraceSource> source);

  bool next(TraceRequest& request) override;
  [[nodiscard]] bool keeps_hashes() const override { return true; }
  [[nodiscard]] ClosedLoop closed_loop() const override { return source_->closed_loop(); }
  [[nodiscard]] std::string skipped() const override { return source_->skipped(); }
  [[nodiscard]] std::string remark() const override { return source_->remark(); }

  void rewind() { next_ = 0; }
  [[nodiscard]] std::size_t size() const { return prompt_tokens_.size(); }
  [[nodiscard]] TraceRequest at(std::size_t i) const;  // as next()
  [[nodiscard]] std::size_t memory_bytes() const;

  // Not for follow-ups; call sort_by_arrival() afterwards.
  void set_arrival(std::size_t i, Time arrival);
  // Stable; follow-ups stay after their session's previous request. A negative earliest arrival shifts all. Rewinds.
  void sort_by_arrival();

 private:
  void append(const TraceRequest& request);
  void set_hash_tokens(std::int32_t hash_tokens);
  [[nodiscard]] std::size_t stored(std::size_t i) const { return order_.empty() ? i : order_[i]; }

  std::unique_ptr<TraceSource> source_;
  // Follow-ups: -1 - delay; others: arrival plus kArrivalShift, never negative.
  std::vector<std::int64_t> when_ns_;
  std::vector<std::int32_t> prompt_tokens_, output_tokens_;
  std::vector<std::int64_t> session_;         // may be empty
  std::vector<std::uint64_t> hashes_;         // of all requests
  std::vector<std::uint64_t> hashes_end_;     // [size] or empty
  std::vector<std::int32_t> hash_tokens_of_;  // empty if hash_tokens_ holds for all
  std::int32_t hash_tokens_ = 0;
  std::vector<RequestFacts> facts_;  // may be empty
  std::vector<bool> has_facts_;
  std::vector<std::uint32_t> order_;  // empty: as stored
  std::size_t next_ = 0;
};

}  // namespace kvlab
