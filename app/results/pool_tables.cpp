#include "app/results/pool_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/csv.h"

namespace kvlab {

namespace {

std::string fixed(double value) { return fmt::format("{:.6f}", value); }
std::string fixed_if(bool exists, double value) { return exists ? fixed(value) : ""; }

// Clamped to 1: a step or copy cut by a stop counts whole.
std::string share(double used_s, double seconds) { return fixed_if(seconds > 0, std::min(1.0, used_s / seconds)); }

// Replicas are numbered over all pools.
const PoolRow& pool_of(const std::vector<PoolRow>& pools, std::uint32_t replica) {
  for (const PoolRow& pool : pools) {
    if (replica < pool.replicas) return pool;
    replica -= pool.replicas;
  }
  throw InternalError("there is no such replica");
}

// busy_frac, steps, output_tokens, kv_used_mean_frac, kv_used_peak_frac, mfu_frac, mbu_frac.
std::vector<std::string> work_of(const PoolRow& pool, const PoolTotals& totals, const PoolCosts& costs, double rank_s) {
  const bool has_steps = totals.steps > 0;
  return {share(static_cast<double>(totals.busy) * 1e-12, rank_s),
          std::to_string(totals.steps),
          std::to_string(totals.output_tokens),
          fixed_if(has_steps && !pool.encodes(), totals.kv_used_mean_frac),
          fixed_if(!pool.encodes(), totals.kv_used_peak_frac),
          fixed_if(has_steps && costs.mfu_frac > 0, costs.mfu_frac),
          fixed_if(has_steps && costs.mbu_frac > 0, costs.mbu_frac)};
}

// KV and tokens stay 0.
PoolTotals totals_of(const EncodeTotals& own) {
  PoolTotals totals;
  totals.busy = own.busy;
  totals.steps = own.passes;
  totals.images = own.images;
  return totals;
}

PoolCosts costs_of(const PoolRow& pool, const EncodeTotals& own) {
  PoolCosts costs;
  const double busy_s = static_cast<double>(own.busy) * 1e-12;
  if (busy_s > 0) costs.mfu_frac = static_cast<double>(own.flops) / (busy_s * pool.peak_flops);
  if (busy_s > 0) costs.mbu_frac = static_cast<double>(own.bytes) / (busy_s * pool.peak_bytes);
  return costs;
}

}  // namespace

std::string pools_csv(const std::string& run_id, const std::vector<PoolRow>& pools, const RunSummary& summary) {
  const bool has_images = pools.front().memory.has_value();
  std::string text =
      "run,pool,role,replicas,gpus,busy_frac,steps,output_tokens,kv_used_mean_frac,kv_used_peak_frac,mfu_frac,mbu_frac,energy_j";
  text += has_images ? ",images,weights_bytes,kv_bytes,embeddings_peak_bytes\n" : "\n";
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const PoolRow& pool = pools[i];
    const EncodeTotals* const encode = pool.encodes() ? &summary.encode_pools.at(i - summary.pools.size()) : nullptr;
    const PoolTotals totals = encode != nullptr ? totals_of(*encode) : summary.pools.at(i);
    const PoolCosts costs = encode != nullptr ? costs_of(pool, *encode) : summary.pool_costs.at(i);
    std::vector<std::string> row{run_id, pool.name, pool.role, std::to_string(pool.replicas),
                                 std::to_string(pool.replicas * static_cast<std::uint32_t>(pool.gpus))};
    const double rank_s = to_s(summary.duration) * pool.replicas * pool.ranks;
    for (std::string& field : work_of(pool, totals, costs, rank_s)) row.push_back(std::move(field));
    row.push_back(fixed_if(pool.energy_j.has_value(), pool.energy_j.value_or(0)));
    if (has_images) {
      row.insert(row.end(), {std::to_string(totals.images), std::to_string(pool.memory->weights_bytes),
                             std::to_string(pool.memory->kv_bytes), encode != nullptr ? std::to_string(encode->peak_held_bytes) : ""});
    }
    text += csv_line(row);
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
