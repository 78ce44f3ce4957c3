#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/int128.h"
#include "policies/block_cache/block_cache.h"
#include "policies/dispatcher/dispatcher.h"
#include "policies/kv/footprint.h"
#include "policies/order/order.h"
#include "policies/predictor/predictor.h"
#include "policies/scheduler/scheduler.h"
#include "serving/encoders.h"
#include "serving/load_balance.h"
#include "serving/metrics.h"
#include "serving/node_store.h"
#include "serving/qoe.h"
#include "serving/swap_setup.h"
#include "serving/transfers.h"

namespace kvlab {

struct MemorySetup : RankMemory {
  std::int64_t num_blocks = 0;       // usable blocks
  std::int64_t block_bytes = 0;      // on one rank's replica group, all layers and heads
  std::int32_t pages_per_block = 1;  // layers x KV heads
  bool is_derived = false;           // from memory size and reserve
  // On the link to CPU memory, and in that memory.
  [[nodiscard]] std::int64_t copy_bytes() const { return swap.codec.is_on() ? swap.codec.block_bytes : block_bytes; }
};

// 0: no limit.
struct StopRule {
  Span after_time{0};
  std::uint64_t after_requests = 0;  // requests taken from the trace
};

// Equal replicas. Each rank has its own policies.
struct PoolSetup {
  std::string name;  // "" for the only pool
  Roles roles;
  std::uint32_t num_replicas = 1;
  std::uint32_t ranks = 1;  // data parallelism in each replica
  LoadBalance load_balance = LoadBalance::kVllm;
  bool steps_together = true;  // false: ranks only share the replica's arrivals
  std::function<std::unique_ptr<Scheduler>()> make_scheduler;
  std::function<std::unique_ptr<Order>()> make_order;          // empty: first come, first served
  std::function<std::unique_ptr<Predictor>()> make_predictor;  // empty: true lengths
  std::function<std::unique_ptr<BlockCache>()> make_block_cache;
  std::function<std::unique_ptr<Footprint>()> make_footprint;
  MemorySetup memory;
  LinkSetup link;                 // to other replicas, of a whole replica, one direction
  std::int64_t store_blocks = 0;  // per replica; 0: no store
  std::int32_t max_model_len = 1 << 20;
};

// Without `pools`, the setup is itself the only pool.
struct HostSetup : PoolSetup {
  std::vector<PoolSetup> pools;                                  // with equal block_tokens, model and KV policy; each stage needs one
  std::function<std::unique_ptr<Dispatcher>()> make_dispatcher;  // unused for one replica without encode pools
  TransferSetup transfer;
  StoreSetup store;  // prompts in CPU memory
  ImageSetup images;
  Slo slo;
  std::optional<ExpectedText> expected_text;  // none: QoE is not followed
  StopRule stop;
  Span warmup{0};                                // earlier arrivals are not counted
  Span timeline_interval{0};                     // 0: no timeline
  std::uint64_t most_timeline_rows = 3'000'000;  // beyond: wider intervals (TimelineSampling)
  std::uint64_t seed = 1;
  bool fast_forward = true;                              // if the device looks ahead
  std::vector<std::uint64_t> future_keys;                // for oracle block caches, one replica: lookups of an earlier pass
  std::vector<std::uint64_t>* record_lookups = nullptr;  // for such a pass

  [[nodiscard]] std::size_t num_pools() const { return pools.empty() ? 1 : pools.size(); }
  [[nodiscard]] const PoolSetup& pool(std::size_t i) const { return pools.empty() ? *this : pools[i]; }
};

// One direction of one replica's links.
struct LinkUse {
  std::uint32_t replica = 0;
  bool is_egress = false;
  std::uint64_t transfers = 0;
  std::int64_t bytes = 0;
  Picoseconds busy{};
};

struct StoreUse {
  std::uint32_t replica = 0;
  std::int64_t num_blocks = 0, block_bytes = 0;
  std::int64_t kept_blocks = 0;  // at the run's end
  NodeStore::Use use;
  std::int64_t evicted_blocks = 0;
};

struct PoolTotals {
  Int128 busy = 0;  // rank-picoseconds
  std::uint64_t steps = 0;
  std::int64_t output_tokens = 0, images = 0;
  double kv_used_mean_frac = 0, kv_used_peak_frac = 0;
};

// Over all replicas.
struct ServingSummary {
  MetricsCollector::Latencies latencies;
  GroupSummary groups;
  std::uint64_t requests = 0;  // from the trace
  Span duration{};             // first arrival to last event
  Span counted_duration{};     // without warm-up
  std::uint64_t preemptions = 0, swaps = 0, recompute_fallbacks = 0;
  std::uint64_t over_budget = 0;  // more always-kept prompt tokens than the KV policy's budget
  std::int64_t recomputed_tokens = 0, lookup_tokens = 0, hit_tokens = 0;
  std::int64_t output_tokens = 0;  // with warm-up and unfinished requests
  std::uint64_t steps = 0, block_operations = 0, evictions = 0;
  double batch_mean_requests = 0, batch_mean_tokens = 0;  // weighted by step time; per step
  double kv_used_mean_frac = 0, kv_used_peak_frac = 0;    // referenced share of blocks, weighted by step time
  double busy_frac = 0, overload_frac = 0;                // a step runs; a step runs and requests wait
  double internal_fragmentation_frac = 0, external_fragmentation_frac = 0;
  std::string first_rejection;
  std::string skipped;                     // skipped rows of the trace, with reasons
  std::string trace_remark;                // suspicious facts
  std::string timeline_remark;             // wider sampling intervals than configured
  std::string remark;                      // limitations of the host
  std::vector<PoolTotals> pools;           // as in the setup
  std::vector<LinkUse> links;              // used ones; encode replicas are numbered last
  std::vector<StoreUse> stores;            // of replicas with a store
  std::vector<EncodeTotals> encode_pools;  // as in the setup
  std::uint64_t peak_held_requests = 0;
  std::uint64_t events = 0;  // handled one by one
};

}  // namespace kvlab
