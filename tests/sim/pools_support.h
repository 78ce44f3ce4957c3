#pragma once

#include <string>
#include <vector>

#include "tests/sim/random_runs.h"

// Pools of replicas for tests.
namespace kvlab::testing {

inline PoolSetup pool_of(const SimSetup& base, const std::string& name, Roles roles, std::uint32_t replicas) {
  PoolSetup pool = base;
  pool.name = name;
  pool.roles = roles;
  pool.num_replicas = replicas;
  return pool;
}

// Prefill and decode pools of these numbers of replicas, over links of 1 GB/s that take 1 ms per call.
inline SimSetup pools_setup(std::uint32_t prefill, std::uint32_t decode, const std::string& dispatcher = "least_outstanding",
                            SimSetup base = basic_setup("vllm_v1", "{async_scheduling: false}")) {
  base.make_dispatcher = policy<DispatcherRegistry>("dispatcher", dispatcher, "{}");
  base.link = {1e9, Span(1'000'000)};
  base.memory.block_bytes = 1 << 20;
  base.pools = {pool_of(base, "prefill", {true, false}, prefill), pool_of(base, "decode", {false, true}, decode)};
  base.pool_costs.assign(2, base);
  base.timeline_interval = Span{0};
  return base;
}

// Prefill replicas keep prompts in a number of blocks of 64 tokens, which the block cache of GPU memory has in four.
inline void add_store(SimSetup& setup, std::int64_t blocks, std::int32_t block_tokens = 64) {
  setup.store.block_tokens = block_tokens;
  setup.store.make_eviction = policy<BlockCacheRegistry>("block cache", "lru", "{}");
  for (PoolSetup& pool : setup.pools) pool.store_blocks = pool.roles.prefill ? blocks : 0;
}

// Prompts of one family begin alike: `named` tokens have hashes of 16 tokens.
struct Family {
  std::vector<std::uint64_t> hashes;
  Family(std::uint64_t number, std::int32_t named) {
    for (std::int32_t i = 0; i < named / 16; ++i) hashes.push_back(mix64(1000 * number + static_cast<std::uint64_t>(i)));
  }
  [[nodiscard]] TraceRequest at(double ms, std::int32_t prompt, std::int32_t output = 3) const {
    TraceRequest r = request_at(ms, prompt, output);
    r.hash_tokens = 16;
    r.hashes = hashes;
    return r;
  }
};

}  // namespace kvlab::testing
