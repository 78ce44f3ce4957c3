#include "serving/rank.h"

#include <utility>

namespace kvlab {

namespace {

ReplicaLimits limits_of(const HostSetup& setup, const PoolSetup& pool, std::uint32_t number, const Scheduler& scheduler,
                        const Device::Traits& traits) {
  ReplicaLimits limits;
  limits.block_tokens = pool.memory.block_tokens;
  limits.max_model_len = pool.max_model_len;
  limits.host_blocks = pool.memory.host_blocks;
  limits.swap_group_blocks = pool.memory.swap_group_blocks;
  limits.keeps_host_copies = pool.memory.keeps_host_copies;
  limits.swap = pool.memory.swap;
  limits.is_contiguous = scheduler.wants_contiguous_memory();
  limits.prefix_caching = pool.memory.prefix_caching && !limits.is_contiguous;
  limits.unnamed_rest = traits.unnamed_rest;
  limits.plans_over_unknown = scheduler.pipeline_depth() > 1 && traits.num_stages == 1;
  limits.count_from = kStart + setup.warmup;
  limits.scheduler_predicts = scheduler.uses_predictor();
  limits.replica = number;
  if (setup.images.pools.empty()) limits.image_tokens = setup.images.tokens_each;
  limits.slo = &setup.slo;
  if (setup.expected_text) limits.expected_text = &*setup.expected_text;
  return limits;
}

std::unique_ptr<BlockPool> make_blocks(const HostSetup& setup, const PoolSetup& pool) {
  std::unique_ptr<BlockCache> cache = pool.make_block_cache();
  BlockCache& oracle = *cache;
  auto blocks =
      std::make_unique<BlockPool>(static_cast<std::uint32_t>(pool.memory.num_blocks), pool.memory.pages_per_block, std::move(cache));
  if (oracle.needs_future()) oracle.set_future(setup.future_keys);  // the pool has reset it
  return blocks;
}

std::unique_ptr<Predictor> make_predictor(const HostSetup& setup, const PoolSetup& pool) {
  if (!pool.make_predictor) return nullptr;
  std::unique_ptr<Predictor> predictor = pool.make_predictor();
  predictor->set_seed(setup.seed);
  return predictor;
}

}  // namespace

Rank::Rank(const HostSetup& setup, const PoolSetup& pool, std::uint32_t number, std::unique_ptr<Device> its_device)
    : scheduler(pool.make_scheduler()),
      device(std::move(its_device)),
      state(limits_of(setup, pool, number, *scheduler, device->traits()), make_blocks(setup, pool), pool.make_footprint(),
            pool.make_order ? pool.make_order() : nullptr, make_predictor(setup, pool)) {
  state.memory().lookup_log = setup.record_lookups;
  device->attach(state, *scheduler);
}

}  // namespace kvlab
