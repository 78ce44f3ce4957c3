#include "serving/uniform_decode.h"

#include <algorithm>
#include <tuple>

#include "serving/decode_group.h"

namespace kvlab {

// Iteration, from 1, with a plan that needs another block: it computes token number blocks * block_tokens.
std::int64_t UniformDecode::first_allocation(const Request& r) const {
  return static_cast<std::int64_t>(r.blocks.size()) * block_tokens() - r.computed_tokens + 1;
}

// Iteration with a plan that publishes r's next block: its tokens are allocated and have values.
std::int64_t UniformDecode::first_publication(const Request& r) const {
  return (std::int64_t{r.published} + 1) * block_tokens() - std::min(r.computed_tokens, r.known_values());
}

template <class Visit>
void UniformDecode::each(Visit&& visit) const {
  if (!group_.is_empty()) return group_.each(visit);
  for (const RequestId id : queues_.running()) {
    const Request& r = table_[id];
    const std::int64_t left = r.output_limit - r.output_tokens - r.in_flight_tokens;
    const std::int64_t next_block = r.left_hashed ? kNoStep : first_allocation(r);
    const bool publishes = !r.left_hashed && r.published < r.num_hashes;
    visit(DecodeOutlook{id, left, next_block, publishes ? first_publication(r) : kNoStep, r.has_emitted()});
  }
}

std::int64_t UniformDecode::allocations_in(std::int64_t iterations) const {
  std::int64_t all = 0;
  each([&](const DecodeOutlook& row) {
    if (row.next_block <= iterations) all += (iterations - row.next_block) / block_tokens() + 1;
  });
  return all;
}

std::int64_t UniformDecode::iterations(const Horizon& horizon, int depth) {
  const bool others_wait = queues_.num_waiting() > 0;  // a publication gives the first of them more hits
  std::int64_t iterations = horizon.plans;
  each([&](const DecodeOutlook& row) {
    if (!row.has_emitted) iterations = 0;
    iterations = std::min(iterations, row.left);
    if (others_wait) iterations = std::min(iterations, row.next_publication - 1);
  });
  if (iterations > 1 && memory_.looks_ahead()) return iterations_ahead(iterations, depth, others_wait && horizon.ends_with_hits);
  if (iterations <= 0 || memory_.is_contiguous()) return iterations;
  const BlockPool& pool = memory_.pool();
  const std::int64_t free = others_wait && horizon.ends_with_hits ? pool.takes_before_loss() : pool.free_blocks();
  if (allocations_in(iterations) <= free) return iterations;
  std::int64_t low = 0, high = iterations;  // allocations_in(low) <= free < allocations_in(high)
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (allocations_in(middle) <= free ? low : high) = middle;
  }
  return low;
}

// Look-ahead of steps that an event cuts is wasted, so their number follows earlier stretches.
std::int64_t UniformDecode::iterations_ahead(std::int64_t iterations, int depth, bool ends_with_hits) {
  const std::vector<RequestId>& running = queues_.running();
  ahead_ = std::clamp<std::int64_t>(left_ == 0 ? 2 * ahead_ : ahead_ / 2, 4, 256);
  left_ = 0;
  // Blocks that an output returns are free for the next plan's waiting requests.
  const auto gives_back = [&](RequestId id) { return table_[id].left_hashed && table_[id].pages > table_[id].kept_pages; };
  if (queues_.num_waiting() > 0 && depth == 1 && !memory_.is_contiguous() && std::any_of(running.begin(), running.end(), gives_back))
    return 0;
  std::int64_t steps = memory_.look_ahead(running, std::min(iterations, ahead_));
  const BlockPool& pool = memory_.pool();
  const auto fits = [&](std::int64_t n) {
    if (memory_.is_contiguous()) return true;
    const std::int64_t pages = memory_.pages_ahead(running, n);
    if (!ends_with_hits) return allocations_in(n) <= (pages > 0 ? pool.free_after_pages(pages) : pool.free_blocks());
    const std::int64_t splits = pages > 0 ? ceil_div<std::int64_t>(pages, pool.pages_per_block()) + 1 : 0;
    return allocations_in(n) + splits <= pool.takes_before_loss();
  };
  std::int64_t low = 0;  // fits(low), not fits(low + 1)
  while (low < steps) {
    const std::int64_t middle = low + (steps - low + 1) / 2;
    if (fits(middle))
      low = middle;
    else
      steps = middle - 1;
  }
  left_ = low < 2 ? 0 : low;
  memory_.charge_ahead(left_);
  return left_;
}

void UniformDecode::collect(std::int64_t iterations) {
  replays_.clear();
  if (memory_.is_contiguous()) return;
  std::uint32_t order = 0;
  each([&](const DecodeOutlook& row) {
    const auto add = [&](std::int64_t first, bool publishes) {
      if (first <= iterations) replays_.push_back({first, (first - 1) % block_tokens(), order, publishes});
    };
    add(row.next_block, false);
    add(row.next_publication, true);
    ++order;
  });
  if (replays_.size() < 2) return;
  std::sort(replays_.begin(), replays_.end(), [](const Replay& a, const Replay& b) {
    return std::tie(a.phase, a.order, a.publishes) < std::tie(b.phase, b.order, b.publishes);
  });
}

void UniformDecode::carry_out(const Replay& replay) {
  Request& r = table_.without_counts(queues_.running()[replay.order]);
  if (replay.publishes) {
    memory_.publish_up_to(r, (r.published + 1) * block_tokens());
    if (!group_.is_empty()) group_.note_publication(replay.order);
  } else {
    memory_.take_block(r);
    if (!group_.is_empty()) group_.note_block(replay.order);
  }
}

void UniformDecode::emit(std::int64_t iterations, Picoseconds first_at, Picoseconds last_at, StepRing& steps, LogHistogram& itl) {
  if (!group_.is_empty()) return group_.emit(iterations, first_at, last_at, steps, itl);
  const auto tokens = static_cast<std::int32_t>(iterations);
  HistogramRun gaps(itl);
  for (const RequestId id : queues_.running()) {
    Request& r = table_[id];
    if (r.is_counted) gaps.add((first_at - r.last_emitted).count());
    if (!memory_.looks_ahead()) memory_.add_live(tokens);  // repeat() did it
    table_.set_computed(r, r.computed_tokens + tokens);
    r.output_tokens += tokens;
    if (!r.left_hashed) r.publishable_tokens = std::max(r.publishable_tokens, std::min(r.computed_tokens, r.known_values()));
    r.last_emitted = last_at;
  }
}

std::int64_t UniformDecode::counted_rows() const {
  if (!group_.is_empty()) return group_.next_rows().counted;
  const std::vector<RequestId>& running = queues_.running();
  return std::count_if(running.begin(), running.end(), [&](RequestId id) { return table_[id].is_counted; });
}

}  // namespace kvlab
