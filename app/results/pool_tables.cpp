#include "app/results/pool_tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/csv.h"

namespace kvlab {

namespace {

std::string fixed(double value) { return fmt::format("{:.6f}", value); }
std::string fixed_if(bool exists, double value) { return exists ? fixed(value) : ""; }

// The share of `seconds` that was used, at most 1: a step or a copy that a stop cuts short is counted whole.
std::string share(double used_s, double seconds) { return fixed_if(seconds > 0, std::min(1.0, used_s / seconds)); }

// The pool of a replica, counted over all of them.
const PoolRow& pool_of(const std::vector<PoolRow>& pools, std::uint32_t replica) {
  for (const PoolRow& pool : pools) {
    if (replica < pool.replicas) return pool;
    replica -= pool.replicas;
  }
  throw InternalError("there is no such replica");
}

}  // namespace

std::string pools_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary) {
  std::string text =
      "run,pool,role,replicas,gpus,busy_frac,steps,output_tokens,kv_used_mean_frac,kv_used_peak_frac,mfu_frac,mbu_frac,energy_j\n";
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const PoolRow& pool = pools[i];
    const PoolTotals& totals = summary.pools.at(i);
    const PoolCosts& costs = summary.pool_costs.at(i);
    const double rank_s = to_s(summary.duration) * pool.replicas * pool.ranks;
    const bool has_steps = totals.steps > 0;
    text += csv_line({run_id, pool.name, pool.role, std::to_string(pool.replicas),
                      std::to_string(pool.replicas * static_cast<std::uint32_t>(pool.gpus)),
                      share(static_cast<double>(totals.busy) * 1e-12, rank_s), std::to_string(totals.steps),
                      std::to_string(totals.output_tokens), fixed_if(has_steps, totals.kv_used_mean_frac), fixed(totals.kv_used_peak_frac),
                      fixed_if(has_steps && costs.mfu_frac > 0, costs.mfu_frac), fixed_if(has_steps && costs.mbu_frac > 0, costs.mbu_frac),
                      fixed_if(pool.energy_j.has_value(), pool.energy_j.value_or(0))});
  }
  return text;
}

std::string links_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary) {
  std::string text = "run,pool,replica,direction,transfers,bytes,busy_frac\n";
  for (const LinkUse& use : summary.links)
    text += csv_line({run_id, pool_of(pools, use.replica).name, std::to_string(use.replica), use.is_egress ? "out" : "in",
                      std::to_string(use.transfers), std::to_string(use.bytes),
                      share(static_cast<double>(use.busy.count()) * 1e-12, to_s(summary.duration))});
  return text;
}

std::string stores_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary) {
  std::string text = "run,pool,replica,blocks,block_bytes,kept_blocks,written_blocks,evicted_blocks,no_room_blocks,loaded_bytes\n";
  for (const StoreUse& store : summary.stores)
    text +=
        csv_line({run_id, pool_of(pools, store.replica).name, std::to_string(store.replica), std::to_string(store.num_blocks),
                  std::to_string(store.block_bytes), std::to_string(store.kept_blocks), std::to_string(store.use.written_blocks),
                  std::to_string(store.evicted_blocks), std::to_string(store.use.no_room_blocks), std::to_string(store.use.loaded_bytes)});
  return text;
}

}  // namespace kvlab
