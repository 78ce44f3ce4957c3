#pragma once

#include <bit>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "tests/serving/sink_window.h"
#include "tests/sim/sim_support.h"

// Drawn workloads, and the results of a run as text, to compare runs with and without fast-forward.
namespace kvlab::testing {

struct Workload {
  std::vector<TraceRequest> requests;
  std::vector<std::vector<std::uint64_t>> hashes;
  std::vector<RequestFacts> facts;
};

// Requests in shared-prefix groups; some name their generated tokens, some have no content. Five clients, three priorities.
inline Workload random_workload(std::uint64_t seed, std::size_t count, double gap_ms, std::uint64_t longest_output) {
  Workload w;
  w.hashes.resize(count);
  w.facts.resize(count);
  double at = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto draw = [&](std::uint64_t step) { return Draw{seed, Purpose::kTest, i, step, 0}; };
    at += draw(0).exponential(gap_ms);
    TraceRequest r =
        request_at(at, static_cast<std::int32_t>(1 + draw(1).below(400)), static_cast<std::int32_t>(1 + draw(2).below(longest_output)));
    const std::uint64_t kind = draw(3).below(3);
    if (kind > 0) {
      const std::uint64_t group = draw(4).below(4);
      const std::int32_t named = kind == 1 ? r.prompt_tokens : r.prompt_tokens + r.output_tokens;
      for (std::int32_t block = 0; block < named / 16; ++block) {
        const bool shared = block < 6;
        w.hashes[i].push_back(
            mix64(shared ? group * 1000 + static_cast<std::uint64_t>(block) : (seed + i) * 100'000 + static_cast<std::uint64_t>(block)));
      }
      r.hash_tokens = 16;
      r.hashes = w.hashes[i];
    }
    w.facts[i].client = static_cast<std::int64_t>(draw(5).below(5));
    w.facts[i].priority = static_cast<std::int32_t>(draw(6).below(3));
    w.facts[i].ttft_slo = Span(static_cast<std::int64_t>(draw(7).below(100'000'000)));
    if (i % 3 == 0) w.facts[i].tbt_slo = Span(static_cast<std::int64_t>(5'000 + draw(9).below(10'000)));  // a step takes 5 us or more
    w.facts[i].request_class = ClassName("c" + std::to_string(draw(8).below(3)));
    r.facts = &w.facts[i];
    w.requests.push_back(r);
  }
  return w;
}

// Every request is there once, with all of its tokens unless it was rejected.
inline void expect_whole(const Workload& w, const Recorder& records) {
  std::vector<int> seen(w.requests.size(), 0);
  for (const RequestRecord& r : records.requests) {
    ++seen[r.number];
    if (r.outcome == Outcome::kRejected) continue;
    EXPECT_EQ(r.outcome, Outcome::kCompleted) << "request " << r.number;
    EXPECT_EQ(r.output_tokens, w.requests[r.number].output_tokens) << "request " << r.number;
    EXPECT_LE(r.arrival, r.queued) << "request " << r.number;
    EXPECT_LE(r.queued, r.scheduled) << "request " << r.number;
    EXPECT_LT(r.scheduled, r.first_token) << "request " << r.number;
  }
  EXPECT_EQ(seen, std::vector<int>(w.requests.size(), 1));
}

inline std::string text_of(const RunSummary& s, const Recorder& records) {
  std::string text;
  const auto add = [&](auto... values) {
    ((text += std::to_string(values) + " "), ...);
    text += "\n";
  };
  const auto& l = s.latencies;
  for (const Distribution& d : {l.ttft, l.tpot, l.itl, l.e2e, l.queueing, l.qoe_loss})
    add(d.count, d.mean, d.p50, d.p90, d.p95, d.p99, d.max);
  add(l.judged, l.attained);
  add(s.requests, ns(s.duration), s.preemptions, s.swaps, s.recompute_fallbacks, s.recomputed_tokens, s.lookup_tokens, s.hit_tokens,
      s.steps, s.evictions);
  add(s.batch_mean_requests, s.batch_mean_tokens, s.kv_used_mean_frac, s.kv_used_peak_frac, s.busy_frac, s.overload_frac, s.mfu_frac,
      s.mbu_frac, s.internal_fragmentation_frac, s.external_fragmentation_frac);
  add(std::bit_cast<std::int64_t>(s.peak_s), s.output_tokens);  // to the last bit
  for (const double f : s.part_frac) add(f);
  for (const double f : s.footing_frac) add(f);
  for (const auto& part : s.step_shares)
    for (const double f : part) add(f);
  for (const RequestRecord& r : records.requests) {
    add(r.number, r.replica, ns(r.queued), ns(r.scheduled), ns(r.first_token), ns(r.last_token), r.hit_tokens, r.preemptions,
        r.recomputed_tokens, static_cast<int>(r.outcome), static_cast<int>(r.gaps), r.prefill_policy.count(), r.decode_policy.count());
  }
  for (const TimelineSample& t : records.samples)
    add(ns(t.at), t.replica, t.running, t.waiting, t.swapped, t.used_blocks, t.cached_blocks, t.free_blocks, t.prompt_tokens,
        t.output_tokens);
  return text;
}

// The CPU time of a run that completes all requests.
inline double cpu_seconds(const SimSetup& setup, const std::vector<TraceRequest>& requests) {
  VectorTrace trace(requests);
  RunSink nothing;
  const std::clock_t before = std::clock();
  EXPECT_EQ(simulate(setup, trace, nothing).latencies.completed, requests.size());
  return static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
}

inline std::string run(SimSetup setup, const Workload& w, bool fast_forward) {
  setup.fast_forward = fast_forward;
  Recorder records;
  const RunSummary summary = run_into(records, setup, w.requests);
  return text_of(summary, records);
}

inline std::function<std::unique_ptr<Footprint>()> sink_window(const SimSetup& setup, std::int32_t budget, Footprint::OnPreempt mode) {
  return [budget, mode, memory = setup.memory] {
    return std::make_unique<SinkWindow>(budget, memory.block_tokens, memory.pages_per_block, mode);
  };
}

// ---- pools of replicas ----

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
