#include "app/runs/plan/store_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/runs/plan/policy_factory.h"
#include "policies/block_cache/block_cache.h"

namespace kvlab {

namespace {

constexpr std::int64_t kBytesPerGpu = std::int64_t{128} << 30;  // 8 GPUs and 1 TiB per machine
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50, kMostBlocks = std::int64_t{1} << 31;

bool can_keep_prompts(const PoolPlan& pool) {
  return pool.roles.prefill && pool.memory.prefix_caching && pool.make_footprint()->shares_prefixes() &&
         !pool.make_scheduler()->wants_contiguous_memory();
}

// Per replica.
std::int64_t blocks_of(const Params& store, const PoolPlan& pool, std::int64_t bytes_per_gpu, std::int32_t block_tokens) {
  if (block_tokens % pool.memory.block_tokens != 0)
    store.fail_at("block_tokens", fmt::format("a block of the store has {} tokens, which are no whole blocks of {}: give 'store' a "
                                              "'block_tokens' that is a multiple of 'memory.block_tokens'",
                                              block_tokens, pool.memory.block_tokens));
  const std::int64_t block_bytes = block_tokens / pool.memory.block_tokens * pool.memory.block_bytes;
  const std::int64_t blocks = bytes_per_gpu * pool.cost.parallel.gpus() / block_bytes;
  if (blocks == 0)
    store.fail_at("bytes_per_gpu", fmt::format("'bytes_per_gpu' = {} holds no block of {} bytes", bytes_per_gpu, block_bytes));
  return std::min(blocks, kMostBlocks);
}

}  // namespace

void read_store(Params& p, ServingPlan& plan) {
  SimSetup& setup = plan.setup;
  Params store = p.optional_child("store", "store");
  if (!p.has("store") && !p.is_describing()) return;
  if (setup.pools.empty() && p.has_own("store")) p.fail_at("store", "'store' keeps prompts that replicas share: it needs 'pools'");
  const auto bytes = store.optional<std::int64_t>("bytes_per_gpu", kBytesPerGpu, 1, kMostBytes,
                                                  "CPU memory that keeps prompts, for each GPU of a replica that prefills");
  const auto block_tokens = store.optional<std::int32_t>("block_tokens", 512, 1, 1 << 20, "tokens of a block of the store");
  setup.store.make_eviction =
      policy_factory<BlockCacheRegistry>(store, "eviction", "lru", "block cache", "which block is given up for a new one");
  store.reject_unread();
  if (p.is_describing()) return;
  if (setup.store.make_eviction()->needs_future())
    store.fail_at("eviction", "an oracle needs the future of one replica, and the store is of several: choose another, for example lru");
  bool any = false;
  for (std::size_t i = 0; i < setup.pools.size(); ++i) {
    if (!can_keep_prompts(plan.pools[i])) continue;
    setup.pools[i].store_blocks = plan.pools[i].store_blocks = blocks_of(store, plan.pools[i], bytes, block_tokens);
    any = true;
  }
  if (any) setup.store.block_tokens = block_tokens;
  if (!any && p.has_own("store"))
    p.fail_at("store",
              "no pool can keep prompts: one that prefills needs 'prefix_caching: true', a 'kv_policy' that shares prefixes, and "
              "a scheduler with paged memory, such as vllm_v1");
}

}  // namespace kvlab
