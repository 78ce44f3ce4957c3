// Results of whole simulations, on small traces.
#include "sim/simulation.h"

#include "base/hash.h"
#include "base/random.h"
#include "policies/kv/grouped_layers.h"
#include "tests/error_of.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

// Requests that begin with one of `groups` shared prefixes.
struct SharedPrefixes {
  SharedPrefixes(std::uint64_t seed, std::uint64_t groups, double gap_ms) : hashes(200) {
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const auto draw = [&](std::uint64_t step) { return Draw{seed, Purpose::kTest, i, step, 0}; };
      const std::uint64_t group = draw(0).below(groups);
      const auto own = static_cast<std::int32_t>(1 + draw(1).below(60));
      TraceRequest r = request_at(gap_ms * static_cast<double>(i), 64 + own, static_cast<std::int32_t>(1 + draw(2).below(20)));
      for (std::uint64_t b = 0; b < static_cast<std::uint64_t>(r.prompt_tokens / 16); ++b)
        hashes[i].push_back(mix64(b < 4 ? 1000 * group + b + 1 : 1'000'000 * (i + 1) + b));
      r.hash_tokens = 16;
      r.hashes = hashes[i];
      requests.push_back(r);
    }
  }
  std::vector<std::vector<std::uint64_t>> hashes;
  std::vector<TraceRequest> requests;
};

std::int64_t hit_tokens(SimSetup setup, const std::string& cache, const std::vector<TraceRequest>& requests) {
  std::vector<std::uint64_t> lookups;
  if (cache == "belady") {
    SimSetup first = setup;
    first.record_lookups = &lookups;
    summary_of(first, requests);
    setup.future_keys = lookups;
  }
  setup.make_block_cache = policy<BlockCacheRegistry>("block cache", cache, "{}");
  return summary_of(setup, requests).hit_tokens;
}

TEST(Simulation, BeladyHitsAtLeastAsOftenAsTheOthers) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SimSetup setup = basic_setup();
    setup.memory.num_blocks = static_cast<std::int64_t>(30 + 10 * (seed % 3));
    const SharedPrefixes trace(seed, 8 + 4 * (seed % 2), seed % 4 == 0 ? 40 : 400);
    const std::int64_t belady = hit_tokens(setup, "belady", trace.requests);
    EXPECT_GT(belady, hit_tokens(setup, "lru", trace.requests)) << "seed " << seed;
    EXPECT_GE(belady, hit_tokens(setup, "fifo", trace.requests)) << "seed " << seed;
  }
}

TEST(Simulation, UsedCachedAndFreeBlocksAddUp) {
  const SharedPrefixes trace(1, 8, 20);
  SimSetup setup = basic_setup();
  setup.memory.num_blocks = 60;
  const Recorder records = records_of(setup, trace.requests);
  bool caches = false;
  for (const TimelineSample& s : records.samples) {
    ASSERT_EQ(s.used_blocks + s.cached_blocks + s.free_blocks, 60);
    caches = caches || s.cached_blocks > 0;
  }
  EXPECT_TRUE(caches);
}

std::vector<TraceRequest> saturating(int count, std::int32_t output) {
  std::vector<TraceRequest> requests;
  for (int i = 0; i < count; ++i) requests.push_back(request_at(0.1 * i, 100, output));
  return requests;
}

std::vector<Picoseconds> equal_stages(int count) { return std::vector(static_cast<std::size_t>(count), LinearPrices{}.step / count); }

TEST(Simulation, OverlappingStagesAreBusyOnce) {
  for (const int stages : {1, 2, 4}) {
    SimSetup setup = basic_setup("vllm_v1", "{max_num_seqs: 8, budget_tokens: 128, async_scheduling: false}");
    setup.make_cost_model = linear_cost({.token = {}, .kv_token = {}, .stages = equal_stages(stages)});
    const RunSummary s = summary_of(setup, saturating(64, 50));
    EXPECT_LE(s.busy_frac, 1) << stages;
    EXPECT_GT(s.busy_frac, 0.99) << stages;
    EXPECT_NEAR(s.part_frac[0], 1, 1e-12) << stages;
    const double flops = s.batch_mean_tokens * static_cast<double>(s.steps) * 1000;
    EXPECT_GT(s.mfu_frac, 0.99 * flops / (to_s(s.duration) * 1e12)) << stages << ": padding counts too";
  }
}

TEST(Simulation, AStepThatTheStopCutsShortIsNotCountedBehindIt) {
  for (const char* parameters : {"{}", "{async_scheduling: false}"}) {
    SimSetup setup = basic_setup("vllm_v1", parameters);
    setup.make_cost_model = linear_cost({.step = Picoseconds{400'000'000'000}});  // 0.4 s
    setup.stop.after_time = Span(1'000'000'000);
    const RunSummary s = summary_of(setup, {request_at(0, 100, 50)});
    EXPECT_LE(s.busy_frac, 1);
    EXPECT_GT(s.busy_frac, 0.99);
  }
}

TEST(Simulation, RefusesArrivalsBeyondThePicosecondClock) {
  const double day_ms = 86'400'000;
  SimSetup setup = basic_setup();
  setup.timeline_interval = Span{0};
  EXPECT_EQ(summary_of(setup, {request_at(0, 100, 1), request_at(106 * day_ms, 100, 1)}).latencies.completed, 2U);
  for (const double days : {107.0, 214.0, 1000.0})
    EXPECT_THROW(summary_of(setup, {request_at(0, 100, 1), request_at(days * day_ms, 100, 1)}), InputError) << days;
  TraceRequest follow_up = request_at(0, 100, 1);
  follow_up.is_follow_up = true;
  follow_up.delay = Span(std::int64_t{60} * 86'400'000'000'000);
  EXPECT_THROW(summary_of(setup, {request_at(60 * day_ms, 100, 1), follow_up}), InputError);
  setup.stop.after_time = Span(1'000'000'000);
  EXPECT_EQ(summary_of(setup, {request_at(0, 100, 1), request_at(1000 * day_ms, 100, 1)}).latencies.completed, 1U);
}

TEST(Simulation, WhatARequestComputedItselfIsNoPrefixHit) {
  for (const char* preemption : {"recompute", "swap"}) {
    SimSetup setup = basic_setup("vllm_v0", std::string("{preemption: ") + preemption + "}");
    setup.memory.num_blocks = 40;
    setup.memory.host_blocks = 100;
    const RunSummary s = summary_of(setup, saturating(20, 400));
    EXPECT_GT(s.preemptions, 0U);
    EXPECT_EQ(s.hit_tokens, 0) << preemption;
  }
}

// A turn that waits for nothing, and a session that waits for another's end, are planned at the instant at which they come.
TEST(Simulation, WhoFollowsAtOnceIsPlannedAtOnce) {
  SimSetup setup = basic_setup("orca", "{max_num_seqs: 2}");
  const auto turn = [](std::int64_t session, bool follows) {
    TraceRequest r = request_at(0, 100, 10);
    r.session = session, r.is_follow_up = follows;
    return r;
  };
  VectorTrace turns({turn(0, false), turn(0, true), turn(0, true), turn(1, false)});
  VectorTrace sessions({turn(0, false), turn(1, false), turn(2, false), turn(3, false)}, 2);
  for (VectorTrace* trace : {&turns, &sessions}) {
    Recorder records;
    simulate(setup, *trace, records);
    EXPECT_EQ(records.requests.size(), 4U);
    for (const RequestRecord& r : records.requests) EXPECT_EQ(r.queued, r.arrival) << r.number;
  }
}

// A preempted request finds the same of its blocks again, with hashes of its own in the trace or without any.
TEST(Simulation, NamesThatNobodySharesChangeNothing) {
  std::uint64_t preemptions = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const auto draw = [&](std::uint64_t i, std::uint64_t step) { return Draw{seed, Purpose::kTest, i, step, 0}; };
    std::vector<TraceRequest> plain, named;
    std::vector<std::vector<std::uint64_t>> hashes(4);
    for (std::uint64_t i = 0; i < hashes.size(); ++i) {
      TraceRequest r = request_at(0.02 * static_cast<double>(i), static_cast<std::int32_t>(1 + draw(i, 0).below(40)),
                                  static_cast<std::int32_t>(1 + draw(i, 1).below(80)));
      plain.push_back(r);
      for (std::int32_t b = 0; b < (r.prompt_tokens + r.output_tokens) / 16; ++b)
        hashes[i].push_back(100 * (i + 1) + static_cast<std::uint64_t>(b));
      r.hash_tokens = 16, r.hashes = hashes[i];
      named.push_back(r);
    }
    SimSetup setup = basic_setup("vllm_v1");
    setup.memory.num_blocks = static_cast<std::int64_t>(8 + seed % 4);
    setup.max_model_len = 128;
    const auto rows_of = [&](const std::vector<TraceRequest>& requests) {
      Recorder records;
      preemptions += run_into(records, setup, requests).preemptions;
      std::vector<std::vector<std::int64_t>> all;
      for (const RequestRecord& r : records.requests)
        all.push_back({static_cast<std::int64_t>(r.number), ns(r.scheduled), ns(r.last_token), r.recomputed_tokens});
      return all;
    };
    EXPECT_EQ(rows_of(plain), rows_of(named)) << "seed " << seed;
  }
  EXPECT_GT(preemptions, 0U);
}

// All share a prefix of 64 tokens, which the first alone does not find.
TEST(Simulation, HitsAndPreemptionsOfTheWarmUpAreNotCounted) {
  const SharedPrefixes trace(1, 1, 400);
  SimSetup setup = basic_setup();
  const RunSummary all = summary_of(setup, trace.requests);
  setup.warmup = Span(4'000'000'000);
  const RunSummary later = summary_of(setup, trace.requests);
  std::int64_t hits = 0, prompts = 0;
  for (const TraceRequest& r : trace.requests)
    if (r.arrival >= kStart + setup.warmup) hits += 64, prompts += r.prompt_tokens;
  EXPECT_EQ(std::pair(later.hit_tokens, later.lookup_tokens), std::pair(hits, prompts));
  EXPECT_EQ(all.hit_tokens, 64 * 199);

  setup = basic_setup("vllm_v0", "{preemption: swap}");
  setup.memory.num_blocks = 40;
  setup.memory.host_blocks = 100;
  setup.warmup = Span(1'000'000'000'000);
  const RunSummary none = summary_of(setup, saturating(20, 400));
  EXPECT_EQ(std::tuple(none.preemptions + none.swaps + none.recompute_fallbacks, none.recomputed_tokens), std::tuple(0U, 0));
}

// One row at a time and a stop after 20 ms: request 0 is done, 1 emits a token in every step of 5 us and is cut off, 2 still waits.
TEST(Simulation, ARequestThatTheStopCutsOffMissesOnlyWhatItHasMissed) {
  const auto attainment = [](Span ttft, Span tpot) {
    SimSetup setup = basic_setup("vllm_v1", "{max_num_seqs: 1}");
    setup.memory.num_blocks = 4000;
    setup.stop.after_time = Span(20'000'000);
    setup.slo = {{true, ttft, tpot}, {}, {}};
    const RunSummary s = summary_of(setup, {request_at(0, 100, 1), request_at(1, 100, 50'000), request_at(2, 100, 1)});
    EXPECT_EQ(std::tuple(s.latencies.completed, s.latencies.unfinished), std::tuple(1U, 2U));
    return s.latencies.slo_attainment_frac;
  };
  constexpr Span kMillisecond(1'000'000), kNoLimit(1'000'000'000'000);
  EXPECT_DOUBLE_EQ(attainment(19 * kMillisecond, kNoLimit), 1) << "nobody is late yet";
  EXPECT_DOUBLE_EQ(attainment(17 * kMillisecond, kNoLimit), 0.5) << "request 2 has waited for 18 ms";
  EXPECT_DOUBLE_EQ(attainment(19 * kMillisecond, Span(1000)), 0.5) << "request 1 is too slow so far";
  EXPECT_DOUBLE_EQ(attainment(Span(1000), kNoLimit), 0) << "first tokens that came late stay late";
}

// Card 1.2: b_max limits a batch, and as many batches are in flight as there are stages.
TEST(Simulation, OrcaFillsEveryStageOfAPipeline) {
  for (const int stages : {1, 2, 4}) {
    SimSetup setup = basic_setup("orca", "{max_num_seqs: 4, reservation: oracle}");
    setup.make_cost_model = linear_cost({.stages = equal_stages(stages)});
    const std::vector<TraceRequest> requests(64, request_at(0, 100, 200));
    Recorder records;
    records.keep_steps = true;
    run_into(records, setup, requests);
    std::size_t most_rows = 0, most_together = 0;
    for (const InFlightStep& step : records.steps) {
      std::size_t together = 0;
      for (const InFlightStep& other : records.steps)
        if (other.start <= step.start && step.start < other.end) together += other.entries.size();
      most_together = std::max(most_together, together);
      most_rows = std::max(most_rows, step.entries.size());
    }
    EXPECT_EQ(most_rows, 4U) << stages;
    EXPECT_EQ(most_together, static_cast<std::size_t>(4 * stages));
  }
}

// A trace that names 16 tokens at a time says nothing of blocks of 24.
TEST(Simulation, RefusesBlocksThatDoNotFitTheTracesHashes) {
  const SharedPrefixes prefixes(1, 4, 1);
  SimSetup setup = basic_setup();
  setup.memory.block_tokens = 24;
  EXPECT_EQ(error_of([&] { summary_of(setup, prefixes.requests); }),
            "block_tokens = 24 does not fit the trace, which names its content per 16 tokens: one must divide the other");
  setup.memory.prefix_caching = false;
  EXPECT_EQ(summary_of(setup, prefixes.requests).latencies.completed, 200U);
}

// Twelve requests of 300 to 740 prompt tokens over a pool of 400 pages.
Served run_with(const LayerGroups& groups) {
  SimSetup setup = basic_setup("vllm_v1", "{budget_tokens: 256}");
  setup.make_footprint = [groups] { return std::make_unique<GroupedLayers>(groups); };
  setup.memory.num_blocks = 400;
  setup.memory.pages_per_block = 1;
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(request_at(i * 0.02, 300 + 40 * i, 60 + 11 * i));
  return serve(setup, requests);
}

TEST(GroupedLayers, AWindowLeavesRoomForMoreRequests) {
  const Served narrow = run_with({16, 64, 3, 0, 256}), wide = run_with({16, 100'000, 3, 0, 256});
  for (const Served* served : {&narrow, &wide}) EXPECT_EQ(served->records.requests.size(), 12U);
  EXPECT_GT(narrow.summary.batch_mean_requests, 1.5 * wide.summary.batch_mean_requests);
  EXPECT_LE(narrow.summary.kv_used_peak_frac, 1);
  EXPECT_LT(narrow.summary.internal_fragmentation_frac, 0.1) << "pages of a window hold tokens that the blocks hold too";
}

}  // namespace
}  // namespace kvlab::testing
