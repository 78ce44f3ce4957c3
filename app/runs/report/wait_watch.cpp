#include "app/runs/report/wait_watch.h"

#include <algorithm>

namespace kvlab {

namespace {

enum WaitCause : std::size_t { kSlots, kMemory, kSteps };
constexpr std::array kWaitCauses = {"request_slots", "kv_memory", "steps"};

}  // namespace

WaitWatch::WaitWatch(const HostSetup& setup, RunSink* next) : ForwardingSink(next) {
  for (std::size_t i = 0; i < setup.num_pools(); ++i) {
    const PoolSetup& pool = setup.pool(i);
    pools_.push_back({pool.num_replicas * pool.ranks, pool.make_scheduler()->step_bounds(pool.max_model_len).requests});
  }
}

const WaitWatch::PoolLimits& WaitWatch::limits_of(std::uint32_t rank) const {
  for (const PoolLimits& pool : pools_) {
    if (rank < pool.ranks) return pool;
    rank -= pool.ranks;
  }
  return pools_.back();
}

void WaitWatch::sample(const TimelineSample& s) {
  ForwardingSink::sample(s);
  if (s.waiting <= 0) return;
  constexpr std::int64_t kTenth = 10;
  const std::int64_t available = s.free_blocks + s.cached_blocks, most = limits_of(s.replica).most_running;
  const bool is_full = available * kTenth < available + s.used_blocks;
  ++counts_[most > 0 && s.running >= most ? kSlots : is_full ? kMemory : kSteps];
}

std::string WaitWatch::waits_for() const {
  const auto most = std::max_element(counts_.begin(), counts_.end());
  return *most == 0 ? "" : kWaitCauses[static_cast<std::size_t>(most - counts_.begin())];
}

}  // namespace kvlab
