#include "serving/rank.h"

#include <utility>

namespace kvlab {

namespace {

ReplicaLimits limits_of(const HostSetup& setup, std::uint32_t number, const Scheduler& scheduler, const Device::Traits& traits) {
  ReplicaLimits limits;
  limits.block_tokens = setup.memory.block_tokens;
  limits.max_model_len = setup.max_model_len;
  limits.host_blocks = setup.memory.host_blocks;
  limits.is_contiguous = scheduler.wants_contiguous_memory();
  limits.prefix_caching = setup.memory.prefix_caching && !limits.is_contiguous;
  limits.unnamed_rest = traits.unnamed_rest;
  limits.plans_over_unknown = scheduler.pipeline_depth() > 1 && traits.num_stages == 1;
  limits.count_from = kStart + setup.warmup;
  limits.replica = number;
  limits.slo = &setup.slo;
  if (setup.expected_text) limits.expected_text = &*setup.expected_text;
  return limits;
}

std::unique_ptr<BlockPool> make_pool(const HostSetup& setup) {
  std::unique_ptr<BlockCache> cache = setup.make_block_cache();
  BlockCache& oracle = *cache;
  auto pool =
      std::make_unique<BlockPool>(static_cast<std::uint32_t>(setup.memory.num_blocks), setup.memory.pages_per_block, std::move(cache));
  if (oracle.needs_future()) oracle.set_future(setup.future_keys);  // the pool has reset it
  return pool;
}

std::unique_ptr<Predictor> make_predictor(const HostSetup& setup) {
  if (!setup.make_predictor) return nullptr;
  std::unique_ptr<Predictor> predictor = setup.make_predictor();
  predictor->set_seed(setup.seed);
  return predictor;
}

}  // namespace

Rank::Rank(const HostSetup& setup, std::uint32_t number, std::unique_ptr<Device> its_device)
    : scheduler(setup.make_scheduler()),
      device(std::move(its_device)),
      state(limits_of(setup, number, *scheduler, device->traits()), make_pool(setup), setup.make_footprint(),
            setup.make_order ? setup.make_order() : nullptr, make_predictor(setup)) {
  state.memory().lookup_log = setup.record_lookups;
  device->attach(state, *scheduler);
}

}  // namespace kvlab
