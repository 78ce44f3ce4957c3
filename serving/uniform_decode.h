#pragma once

#include <cstdint>
#include <vector>

#include "policies/scheduler/scheduler.h"
#include "serving/histogram.h"
#include "serving/kv_memory.h"
#include "serving/rank_queues.h"

namespace kvlab {

class DecodeGroup;
class StepRing;

// `iterations` times (process the oldest output, plan one token per running request), with the effects of single steps.
class UniformDecode {
 public:
  UniformDecode(SlotTable& table, const RankQueues& queues, KvMemory& memory, DecodeGroup& group)
      : table_(table), queues_(queues), memory_(memory), group_(group) {}

  // Iterations within the horizon without a finish or a failed allocation. `depth`: steps in flight.
  [[nodiscard]] std::int64_t iterations(const Horizon& horizon, int depth);
  // Replays allocations and publications in order; calls taken(i) for each block of iteration i (from 1).
  template <class Taken>
  void advance(std::int64_t iterations, Taken taken);
  // For policies that look ahead: iteration by iteration; calls planned() after each plan.
  template <class Planned>
  void repeat(std::int64_t iterations, int depth, Planned planned);
  // `first_at`: time of the first token, `last_at`: of the last. steps: in flight before.
  void emit(std::int64_t iterations, Picoseconds first_at, Picoseconds last_at, StepRing& steps, LogHistogram& itl);
  // Running requests with recorded token gaps.
  [[nodiscard]] std::int64_t counted_rows() const;

 private:
  struct Replay {             // an allocation or publication of one request
    std::int64_t first = 0;   // first iteration, from 1; repeats every block_tokens
    std::int64_t phase = 0;   // (first - 1) % block_tokens
    std::uint32_t order = 0;  // position in running
    bool publishes = false;
  };
  // visit(DecodeOutlook) for each running request.
  template <class Visit>
  void each(Visit&& visit) const;
  void collect(std::int64_t iterations);
  void carry_out(const Replay& replay);
  [[nodiscard]] std::int32_t block_tokens() const { return memory_.limits().block_tokens; }
  [[nodiscard]] std::int64_t first_allocation(const Request& r) const;
  [[nodiscard]] std::int64_t first_publication(const Request& r) const;
  [[nodiscard]] std::int64_t allocations_in(std::int64_t iterations) const;
  [[nodiscard]] std::int64_t iterations_ahead(std::int64_t iterations, int depth, bool ends_with_hits);

  SlotTable& table_;
  const RankQueues& queues_;
  KvMemory& memory_;
  DecodeGroup& group_;
  std::vector<Replay> replays_;
  std::int64_t ahead_ = 4, left_ = 0;  // steps to look ahead: grows if all are carried out
};

template <class Taken>
void UniformDecode::advance(std::int64_t iterations, Taken taken) {
  collect(iterations);
  for (std::int64_t base = 0; base < iterations && !replays_.empty(); base += block_tokens()) {
    for (const Replay& replay : replays_) {
      const std::int64_t at = base + replay.phase + 1;
      if (at < replay.first || at > iterations) continue;
      carry_out(replay);
      if (!replay.publishes) taken(at);
    }
  }
  memory_.forget_hits();
}

template <class Planned>
void UniformDecode::repeat(std::int64_t iterations, int depth, Planned planned) {
  const std::vector<RequestId>& running = queues_.running();
  const bool is_paged = !memory_.is_contiguous();
  for (std::int64_t i = 0; i < iterations; ++i) {
    for (const RequestId id : running)
      if (depth == 1 && is_paged) memory_.return_surplus(table_[id]);
    for (const RequestId id : running) {
      Request& r = table_[id];
      memory_.repeat_pages(id, i);
      if (r.left_hashed || !is_paged) continue;
      if (first_allocation(r) - 1 <= i) memory_.take_block(r);
      if (memory_.limits().prefix_caching && r.published < r.num_hashes && first_publication(r) - 1 <= i)
        memory_.publish_up_to(r, (r.published + 1) * block_tokens());
    }
    for (const RequestId id : running) memory_.repeat_sizes(id, i);
    planned(i);
  }
  memory_.forget_hits();
  left_ -= iterations;
}

}  // namespace kvlab
