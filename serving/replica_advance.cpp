// Fast-forward: many uniform decode steps at once, with the same effects as one by one.
#include "serving/replica_state.h"

namespace kvlab {

// The iteration, from 1, whose plan needs another block: the one that computes token number blocks * block_tokens.
std::int64_t ReplicaState::first_allocation(const Request& r) const {
  return static_cast<std::int64_t>(r.blocks.size()) * limits_.block_tokens - r.computed_tokens + 1;
}

// The iteration whose plan publishes r's next block: the first with that many tokens both allocated and valued.
std::int64_t ReplicaState::first_publication(const Request& r) const {
  return (std::int64_t{r.published} + 1) * limits_.block_tokens - std::min(r.computed_tokens, r.known_values());
}

std::int64_t ReplicaState::allocations_in(std::int64_t iterations) const {
  std::int64_t all = 0;
  for (const RequestId id : running_) {
    const Request& r = table_[id];
    const std::int64_t first = first_allocation(r);
    if (first <= iterations) all += (iterations - first) / limits_.block_tokens + 1;
  }
  return all;
}

std::int64_t ReplicaState::uniform_iterations(const Horizon& horizon) {
  const bool stop_before_publication = !waiting_.empty();  // with which a head finds more hits
  std::int64_t iterations = horizon.plans;
  for (const RequestId id : running_) {
    const Request& r = table_[id];
    if (r.last_token_ps < 0) iterations = 0;
    iterations = std::min<std::int64_t>(iterations, r.output_limit - r.emitted_tokens - r.in_flight_tokens);
    if (stop_before_publication && r.published < r.num_hashes) iterations = std::min(iterations, first_publication(r) - 1);
  }
  if (iterations <= 0 || contiguous_) return iterations;
  const std::int64_t free = !waiting_.empty() && horizon.ends_with_hits ? pool_->takes_before_loss() : pool_->free_blocks();
  if (allocations_in(iterations) <= free) return iterations;
  std::int64_t low = 0, high = iterations;  // allocations_in(low) <= free < allocations_in(high)
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (allocations_in(middle) <= free ? low : high) = middle;
  }
  return low;
}

void ReplicaState::collect_replays(std::int64_t iterations) {
  replays_.clear();
  if (contiguous_) return;
  for (std::uint32_t order = 0; order < running_.size(); ++order) {
    const Request& r = table_[running_[order]];
    const auto add = [&](std::int64_t first, bool publishes) {
      if (first <= iterations) replays_.push_back({first, (first - 1) % limits_.block_tokens, order, publishes});
    };
    add(first_allocation(r), false);
    if (limits_.prefix_caching && r.published < r.num_hashes) add(first_publication(r), true);
  }
  if (replays_.size() < 2) return;
  std::sort(replays_.begin(), replays_.end(), [](const Replay& a, const Replay& b) {
    return std::tie(a.phase, a.order, a.publishes) < std::tie(b.phase, b.order, b.publishes);
  });
}

void ReplicaState::emit_uniform(std::int64_t iterations, Picoseconds first_at, Picoseconds last_at, LogHistogram& itl) {
  const auto tokens = static_cast<std::int32_t>(iterations);
  for (const RequestId id : running_) {
    Request& r = table_[id];
    if (is_counted(r)) itl.add(first_at - r.last_token_ps);
    live_tokens_ += tokens;
    set_computed(r, r.computed_tokens + tokens);
    r.emitted_tokens += tokens;
    r.publishable_tokens = std::max(r.publishable_tokens, std::min(r.computed_tokens, r.known_values()));
    r.last_token_ps = last_at;
  }
  counters_.output_tokens += iterations * static_cast<std::int64_t>(running_.size());
  now_ = to_time(last_at);
}

std::int64_t ReplicaState::counted_rows() const {
  return std::count_if(running_.begin(), running_.end(), [&](RequestId id) { return is_counted(table_[id]); });
}

}  // namespace kvlab
