// Pools of replicas: a request passes its stages on different replicas, and its KV goes over their links.
#include <iterator>

#include "tests/drawn.h"
#include "tests/short_run.h"
#include "tests/sim/random_runs.h"

namespace kvlab::testing {
namespace {

// Steps of LinearCost cost 5 us and 20 ns per token. The prompt of 100 tokens, padded to a graph of 104, takes 7.08 us; its 7 blocks go in
// one call, since both pools are fresh: 1 ms + 7 MiB / 1 GB/s.
TEST(Pools, ARequestPassesBothStages) {
  const auto [records, summary] = serve(pools_setup(1, 1), {request_at(0, 100, 3)});
  ASSERT_EQ(records.requests.size(), 1U);
  const RequestRecord& r = records.requests[0];
  EXPECT_EQ(std::tuple(r.outcome, r.output_tokens, r.replica), std::tuple(Outcome::kCompleted, 3, 1U));
  EXPECT_EQ(ns(r.first_token), 7'080);
  ASSERT_EQ(records.transfers.size(), 1U);
  const TransferRecord& t = records.transfers[0];
  EXPECT_EQ(std::tuple(t.from, t.to, t.tokens, t.bytes, t.calls), std::tuple(0U, 1U, 100, 7 << 20, 1));
  EXPECT_EQ(std::tuple(ns(t.ready), ns(t.asked), ns(t.end)), std::tuple(7'080, 7'080, 7'080 + 1'000'000 + 7'340'032));
  // Decode steps: 5 us + 20 ns + 37 ps for each of 100, then 101 tokens before.
  EXPECT_NEAR(static_cast<double>(ns(r.last_token) - ns(t.end)), 2 * 5'020 + 201 * 0.037, 1.01);
  ASSERT_EQ(summary.pools.size(), 2U);
  EXPECT_EQ(std::tuple(summary.pools[0].output_tokens, summary.pools[1].output_tokens), std::tuple(1, 2));
  ASSERT_EQ(summary.links.size(), 2U);
  EXPECT_TRUE(summary.links[0].is_egress);
  EXPECT_EQ(std::tuple(summary.links[1].bytes, summary.links[1].busy.count()), std::tuple(7 << 20, (ns(t.end) - ns(t.asked)) * 1000));
}

// A decode replica that keeps copies of turns needs sessions and hashes of its block size, as a replica that prefills does.
TEST(Pools, TheDecodeReplicaChecksItsRequests) {
  SimSetup setup = pools_setup(1, 1);
  for (PoolSetup& pool : setup.pools) pool.memory.prefix_caching = false;
  setup.pools[1].memory.swap.keeps_turns = true;
  const std::vector<std::uint64_t> hashes = {1, 2, 3, 4};
  const auto checked = [&](std::int64_t session, std::int32_t hash_tokens) {
    TraceRequest request = request_at(0, 100, 3);
    request.session = session;
    request.hash_tokens = hash_tokens;
    request.hashes = hashes;
    records_of(setup, {request});
  };
  EXPECT_NO_THROW(checked(1, 16));
  EXPECT_THROW(checked(-1, 16), InputError);
  EXPECT_THROW(checked(1, 24), InputError);
}

TEST(Pools, OneTokenNeedsNoTransfer) {
  const Recorder records = records_of(pools_setup(1, 1), {request_at(0, 100, 1)});
  EXPECT_TRUE(records.transfers.empty());
  EXPECT_EQ(records.requests[0].replica, 0U);
}

// Two prompts end together and go to two decode replicas over the one link of their prefill replica, one after the other.
TEST(Pools, TransfersShareALinkInTurn) {
  const Recorder records = records_of(pools_setup(1, 2), {request_at(0, 100, 3), request_at(0, 100, 3)});
  ASSERT_EQ(records.transfers.size(), 2U);
  EXPECT_NE(records.transfers[0].to, records.transfers[1].to);
  EXPECT_EQ(records.transfers[0].asked, records.transfers[1].asked);
  EXPECT_EQ(ns(records.transfers[1].end) - ns(records.transfers[0].end), 1'000'000 + 7'340'032);
}

// T = 8.34 ms over 4 layers, C = 7.08 us: the link is what takes time, and it begins after the first layer of the prompt.
TEST(Pools, LayerwiseTransfersOverlapThePrompt) {
  SimSetup setup = pools_setup(1, 1);
  setup.transfer.is_layerwise = true;
  setup.transfer.layers = 4;
  const Recorder records = records_of(setup, {request_at(0, 100, 3)});
  EXPECT_EQ(ns(records.transfers[0].end), 7'080 / 4 + 1'000'000 + 7'340'032);
  // A fast link ends a layer's time after the prompt.
  setup.pools[0].link = setup.pools[1].link = {1e15, Span(4'000)};
  const Recorder fast = records_of(setup, {request_at(0, 100, 3)});
  EXPECT_EQ(ns(fast.transfers[0].end), 7'080 + 4'000 / 4 + 1);  // 7 MiB in 7 ns, a quarter of it
}

TEST(Pools, CallsCountPlacesAndBlocks) {
  SimSetup setup = pools_setup(1, 1);
  setup.transfer.places_per_block = 8;
  setup.transfer.merges_blocks = false;
  const Recorder records = records_of(setup, {request_at(0, 100, 3)});
  EXPECT_EQ(records.transfers[0].calls, 7 * 8);
}

// The second request of a prefix finds it on the decode side: its first six blocks are there.
TEST(Pools, CachedBlocksAreNotSentAgain) {
  const Family family(1, 96);
  const Recorder records = records_of(pools_setup(1, 1), {family.at(0, 100, 30), family.at(50, 100, 30)});
  ASSERT_EQ(records.transfers.size(), 2U);
  EXPECT_EQ(std::tuple(records.transfers[0].bytes, records.transfers[1].bytes), std::tuple(7 << 20, 1 << 20));
  EXPECT_EQ(records.requests[1].hit_tokens, 96);  // of the prefill side
}

// Prompts wait on their prefill replica, holding its memory, until the decode replica has room.
TEST(Pools, MemoryOfPromptsThatWaitIsHeld) {
  SimSetup setup = pools_setup(1, 1);
  setup.pools[0].memory.num_blocks = 20;
  setup.pools[1].memory.num_blocks = 20;
  const std::vector<TraceRequest> requests(4, request_at(0, 100, 50));  // 7 blocks each, then 10
  const auto [records, summary] = serve(setup, requests);
  EXPECT_EQ(summary.latencies.completed, 4U);
  // The prefill replica has room for two; the third prompt begins when the first has been fetched.
  std::vector<Time> scheduled;
  for (const RequestRecord& r : records.requests) scheduled.push_back(r.scheduled);
  std::sort(scheduled.begin(), scheduled.end());
  EXPECT_EQ(ns(scheduled[1]), 0);
  EXPECT_GE(scheduled[2], records.transfers[0].end);
}

// Sends each stage to a replica that a test names; holds and rejects as told.
class Told final : public Dispatcher {
 public:
  std::function<Placement(const Ask&, const FleetView&)> answer;
  std::function<void(const FleetView&, FleetControl&)> timer;
  Span every{0};
  Placement place(const Ask& ask, const FleetView& fleet) override { return answer(ask, fleet); }
  [[nodiscard]] bool changes_roles() const override { return true; }
  [[nodiscard]] Span period() const override { return every; }
  void on_timer(const FleetView& fleet, FleetControl& control) override { timer(fleet, control); }
};

SimSetup told_setup(std::uint32_t prefill, std::uint32_t decode, std::function<Placement(const Ask&, const FleetView&)> answer) {
  SimSetup setup = pools_setup(prefill, decode);
  setup.make_dispatcher = [answer] {
    auto told = std::make_unique<Told>();
    told->answer = answer;
    return told;
  };
  return setup;
}

TEST(Pools, ARequestMayDecodeWhereItsPromptWas) {
  const auto stays = [](const Ask& ask, const FleetView&) {
    return Placement::send(ask.stage == Stage::kPrefill ? ReplicaId{0} : ask.from);
  };
  const Recorder records = records_of(told_setup(1, 1, stays), {request_at(0, 100, 5), request_at(0, 30, 5)});
  EXPECT_TRUE(records.transfers.empty());
  for (const RequestRecord& r : records.requests) EXPECT_EQ(std::tuple(r.replica, r.output_tokens), std::tuple(0, 5));
  const auto whole = [](const Ask& ask, const FleetView&) {
    EXPECT_EQ(ask.stage, Stage::kPrefill);
    return Placement::send_whole(ReplicaId{1});
  };
  const Recorder mixed = records_of(told_setup(1, 1, whole), {request_at(0, 100, 5)});
  EXPECT_EQ(std::tuple(mixed.requests[0].replica, mixed.requests[0].output_tokens), std::tuple(1, 5));
}

TEST(Pools, RequestsAreRejectedAtEitherStage) {
  const auto rejects = [](const Ask& ask, const FleetView&) {
    if (ask.request.number == 0) return Placement::reject("too late for prefill");
    return ask.stage == Stage::kPrefill ? Placement::send(ReplicaId{0}) : Placement::reject("too late for decode");
  };
  const auto [records, summary] = serve(told_setup(1, 1, rejects), {request_at(0, 100, 5), request_at(0, 100, 5)});
  EXPECT_EQ(std::tuple(summary.latencies.rejected, summary.first_rejection), std::tuple(2U, "too late for prefill"));
  ASSERT_EQ(records.requests.size(), 2U);
  EXPECT_EQ(records.requests[1].output_tokens, 1);
  EXPECT_STREQ(records.requests[1].reason, "too late for decode");
}

// Held at arrival until the decode replica has nothing to do.
TEST(Pools, HeldRequestsAreAskedAgainAfterSteps) {
  int asked = 0;
  const auto holds = [&](const Ask& ask, const FleetView& fleet) {
    if (ask.stage == Stage::kDecode) return Placement::send(ReplicaId{1});
    if (ask.request.number == 0) return Placement::send(ReplicaId{0});
    ++asked;
    return fleet.load(ReplicaId{1}).running > 0 ? Placement::hold(ReplicaId{1}) : Placement::send(ReplicaId{0});
  };
  const Recorder records = records_of(told_setup(1, 1, holds), {request_at(0, 100, 20), request_at(8.4, 100, 5)});
  ASSERT_EQ(records.requests.size(), 2U);
  EXPECT_EQ(records.requests[0].number, 0U);
  EXPECT_GT(asked, 1);
  EXPECT_EQ(std::tuple(records.requests[1].queued, ns(records.requests[1].arrival)), std::tuple(records.requests[0].last_token, 8'400'000));
}

TEST(Pools, AReplicaChangesItsRoleWhenItIsEmpty) {
  SimSetup setup = pools_setup(2, 1);
  std::vector<std::size_t> decoders;
  setup.make_dispatcher = [&] {
    auto told = std::make_unique<Told>();
    told->every = Span(5'000'000);
    told->answer = [&](const Ask& ask, const FleetView&) {
      if (ask.stage == Stage::kDecode) decoders.push_back(ask.among.size());
      return Placement::send(ask.among.back());
    };
    told->timer = [](const FleetView& fleet, FleetControl& control) {
      if (fleet.roles(ReplicaId{1}).prefill) control.change_roles(ReplicaId{1}, {false, true});
    };
    return told;
  };
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(request_at(i * 2.0, 100, 40));
  const RunSummary summary = summary_of(setup, requests);
  EXPECT_EQ(summary.latencies.completed, 40U);
  EXPECT_EQ(std::tuple(decoders.front(), decoders.back()), std::tuple(1U, 2U));
}

TEST(Pools, RequestsThatAreHeldForeverAreNamed) {
  const auto never = [](const Ask&, const FleetView&) { return Placement::hold(); };
  EXPECT_THROW(records_of(told_setup(1, 1, never), {request_at(0, 100, 5)}), InputError);
}

TEST(Pools, PreemptedRequestsAreComputedAgainWhereTheyDecode) {
  SimSetup setup = pools_setup(1, 1);
  setup.pools[1].memory.num_blocks = 18;
  const RunSummary summary = summary_of(setup, {request_at(0, 100, 100), request_at(0, 100, 100)});
  EXPECT_EQ(summary.latencies.completed, 2U);
  EXPECT_GT(summary.preemptions, 0U);
  EXPECT_GT(summary.recomputed_tokens, 0);
}

// Two decode replicas in step, and a request held for one of them: with fast-forward or without, it is taken by the plan of the step that
// released it.
TEST(Pools, HeldRequestsAreAskedAboutBeforeTheNextPlan) {
  const auto holds = [](const Ask& ask, const FleetView& fleet) {
    if (ask.stage == Stage::kPrefill) return Placement::send(ReplicaId{0});
    if (ask.request.number < 2) return Placement::send(ReplicaId{static_cast<std::uint32_t>(1 + ask.request.number)});
    const ReplicaView& view = fleet.view(ReplicaId{1}, 0);
    const bool is_late = view.running().empty() || view.info(view.running().front()).output_tokens > 40;
    return is_late ? Placement::send(ReplicaId{1}) : Placement::hold(ReplicaId{1});
  };
  std::vector<std::string> ends;
  for (const bool fast_forward : {false, true}) {
    SimSetup setup = told_setup(1, 2, holds);
    setup.fast_forward = fast_forward;
    for (PoolSetup& pool : setup.pools) pool.link = {1e15, Span{0}};
    const Recorder records = records_of(setup, {request_at(0, 100, 80), request_at(0, 100, 80), request_at(0.05, 100, 5)});
    std::string text;
    for (const RequestRecord& r : records.requests) text += std::to_string(r.number) + ":" + std::to_string(ns(r.last_token)) + " ";
    for (const TransferRecord& t : records.transfers) text += std::to_string(ns(t.asked)) + " ";
    ends.push_back(text);
  }
  EXPECT_EQ(ends[0], ends[1]);
}

TEST(Pools, EachReplicaRefusesWhatItCannotHold) {
  SimSetup setup = pools_setup(1, 1);
  setup.pools[0].memory.num_blocks = 20;  // 320 tokens: the prompt fits, prompt and output do not
  const Recorder records = records_of(setup, {request_at(0, 300, 200)});
  EXPECT_EQ(records.requests[0].outcome, Outcome::kCompleted);
  setup.pools[1].max_model_len = 400;
  EXPECT_EQ(summary_of(setup, {request_at(0, 300, 200)}).first_rejection, "longer than the max_model_len of its decode replica");
}

// A request that changes replicas costs little more CPU time than one that stays. The least of several runs taken in turn.
TEST(Pools, CostAtMostTwoAndAHalfTimesOnePool) {
  if (short_run()) GTEST_SKIP() << "times mean little with KVLAB_SHORT set";
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 20'000; ++i) requests.push_back(request_at(0.02 * i, 500, 60));
  SimSetup pools = pools_setup(4, 4), one = pools;
  for (PoolSetup& pool : pools.pools) pool.link = {1e15, Span{0}};
  one.pools.clear();
  one.num_replicas = 8;
  double with = 1e9, without = 1e9;
  for (int i = 0; i < 3; ++i) {
    with = std::min(with, cpu_seconds(pools, requests));
    without = std::min(without, cpu_seconds(one, requests));
  }
  EXPECT_LT(with, 2.5 * without) << with << " s against " << without << " s";
}

// ---- drawn runs ----

struct DrawnPools {
  SimSetup setup;
  Workload workload;
};

// Holds some requests at either stage, sends some whole, lets some decode where they are, rejects a few.
class Erratic final : public Dispatcher {
 public:
  explicit Erratic(std::uint64_t seed) : seed_(seed) {}
  Placement place(const Ask& ask, const FleetView& fleet) override {
    const auto draw = [&](std::uint64_t step, std::uint64_t n) {
      return Draw{seed_, Purpose::kTest, ask.request.number, step + (ask.stage == Stage::kDecode ? 100 : 0)}.below(n);
    };
    const ReplicaId chosen = ask.among[draw(0, ask.among.size())];
    const ReplicaLoad load = fleet.load(chosen);
    if (draw(1, 40) == 0) return Placement::reject("drawn");
    if (load.running > 0 && draw(2, 3) == 0 && load.running > static_cast<std::int64_t>(draw(3, 6))) return Placement::hold(chosen);
    if (ask.stage == Stage::kDecode && draw(4, 8) == 0) return Placement::send(ask.from);
    if (ask.stage == Stage::kPrefill && draw(6, 2) == 0)
      return Placement::send_fetching(chosen, ReplicaId{static_cast<std::uint32_t>(draw(7, fleet.num_replicas()))});
    return ask.stage == Stage::kPrefill && draw(5, 6) == 0 ? Placement::send_whole(chosen) : Placement::send(chosen);
  }

 private:
  std::uint64_t seed_;
};

// Half of the requests have images: encoded in the steps of their prompts, or on encode replicas before them.
void add_images(std::uint64_t seed, DrawnPools& drawn) {
  const auto draw = [&](std::uint64_t step, std::uint64_t n) { return Draw{seed, Purpose::kTest, 8, step, 1}.below(n); };
  ImageSetup& images = drawn.setup.images;
  images.tokens_each = static_cast<std::int32_t>(1 + draw(0, 60));
  images.bytes_each = static_cast<std::int64_t>(1 + draw(1, 1 << 20));
  const auto image_us = static_cast<std::int64_t>(1 + draw(2, 3000));
  if (seed % 3 == 1) {
    for (std::uint64_t p = 0; p < 1 + draw(3, 2); ++p)
      images.pools.push_back({"encode", static_cast<std::uint32_t>(1 + draw(4 + p, 3)), static_cast<std::int32_t>(1 + draw(6 + p, 4)),
                              drawn.setup.link, [image_us](std::int64_t n) {
                                return EncodeWork{to_ps(Span((n + 1) * image_us * 1000)), {}, n, n};
                              }});
  }
  for (SimCosts& costs : drawn.setup.pool_costs)
    costs.encode = [image_us](std::int64_t n) {
      StepCost cost;
      cost.add(CostPart::kLinear, Footing::kRoofline, to_ps(Span(n * image_us * 1000)));
      return cost;
    };
  for (std::size_t i = 0; i < drawn.workload.requests.size(); ++i) {
    RequestFacts& facts = drawn.workload.facts[i];
    TraceRequest& request = drawn.workload.requests[i];
    facts.images = static_cast<std::int32_t>(draw(100 + i, 2) * (1 + draw(200 + i, 4)));
    const std::int64_t text = request.prompt_tokens;
    request.prompt_tokens += facts.images * images.tokens_each;
    if (facts.images == 0 || request.hash_tokens == 0) continue;
    request.hashes = request.hashes.first(std::min(request.hashes.size(), static_cast<std::size_t>(text / request.hash_tokens)));
    if (request.hashes.empty()) request.hash_tokens = 0;
  }
}

DrawnPools drawn_pools(std::uint64_t seed) {
  static constexpr const char* kSchedulers[][2] = {{"vllm_v1", "{budget_tokens: 256, max_num_seqs: 12}"},
                                                   {"vllm_v1", "{budget_tokens: 256, async_scheduling: false}"},
                                                   {"sarathi", "{budget_tokens: 64, max_num_seqs: 12}"},
                                                   {"fastgen", "{forward_tokens: 256, max_num_seqs: 16}"},
                                                   {"vllm_v0", "{max_num_seqs: 12}"},
                                                   {"vllm_v0", "{max_num_seqs: 12, preemption: swap}"},
                                                   {"sglang", "{chunk_tokens: 128, max_num_seqs: 12}"},
                                                   {"layered_prefill", "{budget_tokens: 256, max_num_seqs: 12}"},
                                                   {"depth_wise", "{loops: 2, early_exit_frac: 0.3, max_num_seqs: 12}"},
                                                   {"skip_decode", "{least_layers: 2, over_tokens: 40, batching: sarathi}"},
                                                   {"unified_skip", "{speedup: 2}"},
                                                   {"first_skip", "{skip_frac: 0.3, batching: fastgen}"}};
  static constexpr const char* kPrefillOnly[][2] = {{"orca", "{max_num_seqs: 16}"}, {"static", "{max_batch_seqs: 8}"}};
  static constexpr const char* kOrders[] = {"fcfs", "priority", "sjf", "vtc", "edf", "longest_prefix"};
  static constexpr const char* kCaches[] = {"lru", "fifo", "s3fifo", "lfu", "arc", "gdsf"};
  // Replicas with contiguous memory take no KV, so roles stay with the first five.
  static constexpr const char* kDispatchers[] = {"round_robin",     "least_outstanding", "least_kv",  "power_of_two",
                                                 "prefix_affinity", "distserve",         "splitwise", "tetriinfer",
                                                 "flowkv",          "mooncake",          "epd"};
  const auto draw = [&](std::uint64_t step, std::uint64_t n) { return Draw{seed, Purpose::kTest, 7, step, 1}.below(n); };
  SimSetup setup = basic_setup();
  setup.make_block_cache = policy<BlockCacheRegistry>("block cache", kCaches[draw(0, std::size(kCaches))], "{}");
  setup.memory.block_bytes = 1 << 12;
  setup.max_model_len = 1000;
  setup.memory.host_blocks = draw(1, 2) == 0 ? 0 : 40;
  setup.memory.keeps_host_copies = draw(13, 2) == 0;
  if (draw(2, 4) == 0) setup.make_footprint = sink_window(setup, 96, Footprint::OnPreempt::kSwap);
  setup.link = {1e6 * static_cast<double>(1 + draw(3, 2000)), Span(static_cast<std::int64_t>(draw(4, 200'000)))};
  setup.transfer = {4, draw(5, 2) == 0 ? 8 : 1, draw(6, 2) == 0, draw(7, 2) == 0};
  for (int p = 0; p < 2; ++p) {
    const auto own = [&](std::uint64_t step, std::uint64_t n) { return draw(20 + 10 * static_cast<std::uint64_t>(p) + step, n); };
    PoolSetup pool = pool_of(setup, p == 0 ? "prefill" : "decode", {p == 0, p == 1}, static_cast<std::uint32_t>(1 + own(0, 3)));
    const bool is_prefill_only = p == 0 && seed % 5 == 0;
    const auto& [name, parameters] =
        is_prefill_only ? kPrefillOnly[own(1, std::size(kPrefillOnly))] : kSchedulers[own(1, std::size(kSchedulers))];
    pool.make_scheduler = policy<SchedulerRegistry>("scheduler", name, parameters);
    pool.make_order = policy<OrderRegistry>("order", kOrders[own(2, std::size(kOrders))], "{}");
    pool.memory.num_blocks = static_cast<std::int64_t>(64 + own(3, 200));
    if (own(4, 4) == 0 && !is_prefill_only) pool.roles = {true, true};
    if (pool.roles.prefill && !is_prefill_only) pool.store_blocks = static_cast<std::int64_t>(own(6, 4) * own(7, 40));
    setup.pools.push_back(pool);
    setup.pool_costs.push_back({linear_cost({.cell = static_cast<std::int64_t>(100 + own(5, 5000))}), {}, {}});
  }
  const bool is_erratic = seed % 2 == 0 && seed % 5 != 0;
  if (is_erratic)
    setup.make_dispatcher = [seed] { return std::make_unique<Erratic>(seed); };
  else
    setup.make_dispatcher =
        policy<DispatcherRegistry>("dispatcher", kDispatchers[draw(8, seed % 5 == 0 ? 5 : std::size(kDispatchers))], "{}");
  setup.store.block_tokens = static_cast<std::int32_t>(16 * (1 + draw(14, 4)));
  setup.store.make_eviction = policy<BlockCacheRegistry>("block cache", kCaches[draw(15, std::size(kCaches))], "{}");
  setup.timeline_interval = Span(static_cast<std::int64_t>(1'000'000 + draw(9, 20'000'000)));
  if (draw(10, 4) == 0) setup.stop.after_time = Span(static_cast<std::int64_t>(1'000'000 + draw(11, 60'000'000)));
  DrawnPools drawn{setup, random_workload(seed, 60, 0.05 + 0.01 * static_cast<double>(draw(12, 400)), 300)};
  if (seed % 3 != 0) add_images(seed, drawn);
  return drawn;
}

// The transfer came before the request's first token: a prefix from a store.
bool is_prefix(const Recorder& records, const TransferRecord& t) {
  const auto of =
      std::find_if(records.requests.begin(), records.requests.end(), [&](const RequestRecord& r) { return r.number == t.request; });
  return of != records.requests.end() && t.end <= of->scheduled;
}

// Fast-forward changes nothing, and every request leaves once: with all of its tokens if it was completed. KVLAB_CHECKS adds the
// conservation of blocks, pages and references after each event.
TEST(Pools, DrawnRunsConserveRequestsWithFastForwardOnAndOff) {
  const auto [first, count] = test::drawn_seeds(400, 40);
  std::int64_t loaded = 0, evicted = 0;
  int fetched = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(seed);
    const DrawnPools drawn = drawn_pools(seed);
    ASSERT_EQ(run(drawn.setup, drawn.workload, false), run(drawn.setup, drawn.workload, true)) << "seed " << seed;
    const auto [records, summary] = serve(drawn.setup, drawn.workload.requests);
    std::vector<int> seen(drawn.workload.requests.size(), 0);
    for (const RequestRecord& r : records.requests) {
      ++seen[r.number];
      if (r.outcome != Outcome::kCompleted) continue;
      ASSERT_EQ(r.output_tokens, drawn.workload.requests[r.number].output_tokens) << "seed " << seed;
      ASSERT_LE(r.first_token, r.last_token);
    }
    for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], i < summary.requests ? 1 : 0) << "seed " << seed << " request " << i;
    if (drawn.setup.stop.after_time.count() == 0) {
      ASSERT_GE(summary.latencies.completed, 30U) << "seed " << seed << ": " << summary.first_rejection;
    }
    std::int64_t in = 0, out = 0;
    for (const LinkUse& link : summary.links) (link.is_egress ? out : in) += link.bytes;
    ASSERT_EQ(in, out) << "seed " << seed;
    for (const StoreUse& store : summary.stores) {
      loaded += store.use.loaded_bytes;
      evicted += store.evicted_blocks;
      if (drawn.setup.stop.after_time.count() == 0) {  // no reads or writes are under way
        ASSERT_EQ(store.kept_blocks, store.use.written_blocks - store.evicted_blocks) << "seed " << seed << " store " << store.replica;
      }
    }
    for (const TransferRecord& t : records.transfers) fetched += is_prefix(records, t) ? 1 : 0;
    std::int64_t images = 0, encoded = 0;
    for (const TraceRequest& r : drawn.workload.requests) images += r.facts->images;
    for (const EncodeTotals& pool : summary.encode_pools) encoded += pool.images;
    if (!drawn.setup.images.pools.empty() && drawn.setup.stop.after_time.count() == 0) {
      ASSERT_EQ(encoded, images) << "seed " << seed;
    }
  }
  EXPECT_GT(loaded, 0);
  EXPECT_GT(evicted, 0);
  EXPECT_GT(fetched, short_run() ? 0 : 10);
}

}  // namespace
}  // namespace kvlab::testing
