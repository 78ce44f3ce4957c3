// The store of prompts in CPU memory (Mooncake): prefixes come from a replica's own memory, or over the links from another's.
#include "tests/drawn.h"
#include "tests/sim/random_runs.h"

namespace kvlab::testing {
namespace {

// Places by number: the replica, and the one whose store it fetches from.
class Script final : public Dispatcher {
 public:
  explicit Script(std::vector<std::pair<std::uint32_t, std::uint32_t>> places) : places_(std::move(places)) {}
  Placement place(const Ask& ask, const FleetView&) override {
    if (ask.stage == Stage::kDecode) return Placement::send(ask.among.front());
    const auto& [replica, from] = places_.at(ask.request.number);
    return replica == from ? Placement::send(ReplicaId{replica}) : Placement::send_fetching(ReplicaId{replica}, ReplicaId{from});
  }

 private:
  std::vector<std::pair<std::uint32_t, std::uint32_t>> places_;
};

// Two prefill replicas and one that decodes.
SimSetup store_setup(std::vector<std::pair<std::uint32_t, std::uint32_t>> places, std::int64_t blocks = 100) {
  SimSetup setup = pools_setup(2, 1);
  add_store(setup, blocks);
  setup.make_dispatcher = [places] { return std::make_unique<Script>(places); };
  return setup;
}

const Family kFamily(1, 300), kOther(2, 380);

// Transfers of a request from replica 0 to replica 1.
std::int64_t num_fetches(const Recorder& records, std::uint64_t number) {
  return std::count_if(records.transfers.begin(), records.transfers.end(),
                       [&](const TransferRecord& t) { return t.request == number && t.from == 0 && t.to == 1; });
}

// 300 tokens have 4 full blocks of the store, 16 of GPU memory. They come in 4 calls of 1 ms and 16 MiB / 1 GB/s; the rest is a step of 44
// tokens, padded to 48, on top of 256: 5 us + 48 * 20 ns + 256 * 37 ps.
TEST(PoolsStore, AnotherReplicasPrefixIsFetched) {
  const auto [records, summary] = serve(store_setup({{0, 0}, {1, 0}}), {kFamily.at(0, 300), kFamily.at(50, 300)});
  ASSERT_EQ(records.transfers.size(), 3U);
  const TransferRecord& t = records.transfers[1];
  EXPECT_EQ(std::tuple(t.request, t.from, t.to, t.tokens, t.bytes, t.calls), std::tuple(1U, 0U, 1U, 256, 16 << 20, 4));
  EXPECT_EQ(std::tuple(ns(t.asked), ns(t.end)), std::tuple(50'000'000, 50'000'000 + 4 * 1'000'000 + 16'777'216));
  const RequestRecord& r = record_of(records, 1);
  EXPECT_EQ(std::tuple(r.hit_tokens, r.scheduled, ns(r.first_token) - ns(t.end)), std::tuple(256, t.end, 5'969));
  ASSERT_EQ(summary.stores.size(), 2U);
  EXPECT_EQ(summary.stores[1].kept_blocks, 4);  // the copy stays where it went
  EXPECT_EQ(std::tuple(summary.stores[1].use.loaded_bytes, summary.stores[0].block_bytes), std::tuple(0, 4 << 20));
  std::int64_t in = 0, out = 0;
  for (const LinkUse& link : summary.links) (link.is_egress ? out : in) += link.bytes;
  EXPECT_EQ(in, out);
  EXPECT_EQ(in, t.bytes + records.transfers[0].bytes + records.transfers[2].bytes);
}

// The fetch pays where it is faster than computing the prefix, here 5 us + 300 * 20 ns.
TEST(PoolsStore, AFastLinkBringsTheFirstTokenForward) {
  const auto ttft = [&](const LinkSetup& link, std::uint32_t from) {
    SimSetup setup = store_setup({{0, 0}, {1, from}});
    for (PoolSetup& pool : setup.pools) pool.link = link;
    const Recorder records = records_of(setup, {kFamily.at(0, 300), kFamily.at(50, 300)});
    return ns(record_of(records, 1).first_token) - 50'000'000;
  };
  const LinkSetup fast{1e14, Span{0}}, slow{1e9, Span{0}};
  EXPECT_EQ(ttft(fast, 1), 5'000 + 304 * 20);  // computed
  EXPECT_EQ(ttft(fast, 0), 168 + 5'969);       // 16 MiB / 100 TB/s
  EXPECT_GT(ttft(slow, 0), ttft(slow, 1));
}

// The first replica's memory has room for one prompt: the second one takes all of it, and the third finds its prefix in CPU memory. The
// copy takes 4 calls of 10 us and 16 MiB / 25 GB/s.
TEST(PoolsStore, AReplicaReadsItsOwnStore) {
  SimSetup setup = store_setup({{0, 0}, {0, 0}, {0, 0}});
  setup.pools[0].memory.num_blocks = 24;
  const auto [records, summary] = serve(setup, {kFamily.at(0, 300), kOther.at(50, 380), kFamily.at(100, 300)});
  EXPECT_EQ(record_of(records, 1).hit_tokens, 0);
  const RequestRecord& r = record_of(records, 2);
  EXPECT_EQ(r.hit_tokens, 256);
  EXPECT_NEAR(static_cast<double>(ns(r.scheduled)), 100e6 + 4 * 10e3 + 16777216 / 25.0, 1.01);
  EXPECT_EQ(std::tuple(summary.stores[0].use.loaded_bytes, summary.stores[0].kept_blocks), std::tuple(16 << 20, 4 + 5));
}

// Swaps in 8 bits halve the bytes of swapped blocks alone.
TEST(PoolsStore, IsReadAsItIsOnTheGpuWithSwapsInEightBits) {
  const auto scheduled = [&](std::int64_t swapped_bytes) {
    SimSetup setup = store_setup({{0, 0}, {0, 0}, {0, 0}});
    setup.pools[0].memory.num_blocks = 24;
    setup.pools[0].memory.swap.codec.block_bytes = swapped_bytes;
    const Recorder records = records_of(setup, {kFamily.at(0, 300), kOther.at(50, 380), kFamily.at(100, 300)});
    EXPECT_EQ(record_of(records, 2).hit_tokens, 256);
    return ns(record_of(records, 2).scheduled);
  };
  EXPECT_EQ(scheduled(1 << 19), scheduled(0));
}

// Half of what is fetched is in the own store already: 2 blocks come from there, at the same time.
TEST(PoolsStore, AFetchTakesWhatIsMissing) {
  const Family half(1, 160);
  SimSetup setup = store_setup({{0, 0}, {1, 1}, {1, 1}, {1, 0}});
  setup.pools[0].memory.num_blocks = 24;
  Recorder records;
  const RunSummary summary = run_into(records, setup, {kFamily.at(0, 300), half.at(50, 160), kOther.at(100, 380), kFamily.at(150, 300)});
  const RequestRecord& r = record_of(records, 3);
  EXPECT_EQ(r.hit_tokens, 256);
  EXPECT_EQ(summary.stores[1].use.loaded_bytes, 8 << 20);
  const auto fetched =
      std::find_if(records.transfers.begin(), records.transfers.end(), [](const TransferRecord& t) { return t.request == 3 && t.to == 1; });
  ASSERT_NE(fetched, records.transfers.end());
  EXPECT_EQ(std::tuple(fetched->bytes, fetched->calls, fetched->end), std::tuple(8 << 20, 2, r.scheduled));
}

// While one prompt waits for its prefix, another is computed.
TEST(PoolsStore, OtherPromptsGoOnMeanwhile) {
  const Recorder records =
      records_of(store_setup({{0, 0}, {1, 0}, {1, 1}}), {kFamily.at(0, 300), kFamily.at(50, 300), request_at(51, 100, 3)});
  EXPECT_EQ(ns(record_of(records, 2).first_token), 51'000'000 + 7'080);
  EXPECT_GT(ns(record_of(records, 1).first_token), 70'000'000);
}

// A prompt with an image goes to the encode replica first, and then to the replica that the dispatcher chose, with the prefix that it
// named.
TEST(PoolsStore, APrefixIsFetchedAfterImagesAreEncoded) {
  SimSetup setup = store_setup({{0, 0}, {1, 0}});
  const auto pass = [](std::int64_t) { return EncodeWork{to_ps(Span(1'000'000)), {}, 1, 1}; };
  setup.images = {50, 1'000'000, {{"encode", 1, 1, setup.link, pass}}};
  RequestFacts facts;
  facts.images = 1;
  TraceRequest with_image = kFamily.at(50, 350);
  with_image.facts = &facts;
  const Recorder records = records_of(setup, {kFamily.at(0, 300), with_image});
  const RequestRecord& r = record_of(records, 1);
  EXPECT_EQ(r.replica, 2U) << "its decode replica";
  EXPECT_EQ(r.hit_tokens, 256);
  EXPECT_EQ(num_fetches(records, 1), 1);
}

// A request that is refused gives its references back; the store would not be able to take the next prompt otherwise.
TEST(PoolsStore, RefusedRequestsLeaveNoReferences) {
  const Family other(2, 300);
  SimSetup setup = store_setup({{0, 0}, {0, 0}, {0, 0}, {0, 0}}, 4);
  setup.pools[0].memory.num_blocks = 24;
  setup.pools[0].max_model_len = 400;
  const auto [records, summary] = serve(setup, {kFamily.at(0, 300), request_at(25, 380, 3), kFamily.at(50, 300, 200), other.at(100, 300)});
  EXPECT_EQ(summary.latencies.rejected, 1U);
  const StoreUse& store = summary.stores[0];
  EXPECT_EQ(std::tuple(store.use.no_room_blocks, store.use.written_blocks, store.evicted_blocks), std::tuple(0, 8, 4));
}

// The queue of replica 0 takes 8 ms. Replica 1 has the prefix after 60 MiB / 1 TB/s.
TEST(PoolsStore, MooncakeSendsAPromptToTheIdleReplicaAndFetchesItsPrefix) {
  const Family family(1, 960);
  SimSetup setup = pools_setup(2, 1, "mooncake");
  add_store(setup, 100);
  for (PoolSetup& pool : setup.pools) pool.link = {1e12, Span{0}};
  const std::vector<TraceRequest> requests = {family.at(0, 1000), request_at(50, 5000, 3), request_at(50.001, 8000, 3),
                                              family.at(50.002, 1000)};
  const Recorder with = records_of(setup, requests);
  EXPECT_EQ(record_of(with, 3).hit_tokens, 960);
  EXPECT_EQ(num_fetches(with, 3), 1);
  for (PoolSetup& pool : setup.pools) pool.store_blocks = 0;
  const Recorder without = records_of(setup, requests);
  EXPECT_EQ(record_of(without, 3).hit_tokens, 0);  // computed on replica 1
}

// Replicas that take both stages.
SimSetup one_pool_setup(SimSetup setup, std::uint32_t replicas, std::int64_t num_blocks, std::int64_t store_blocks) {
  setup.pools = {pool_of(setup, "both", {true, true}, replicas)};
  setup.pool_costs.resize(1);
  setup.pools[0].memory.num_blocks = num_blocks;
  add_store(setup, store_blocks);
  return setup;
}

// One of them, with room for one prompt of 380 tokens.
SimSetup lone_setup(std::int64_t store_blocks, std::int64_t num_blocks = 24) {
  return one_pool_setup(pools_setup(1, 0), 1, num_blocks, store_blocks);
}

// All at time 0. The first two prompts take all of GPU memory one after the other; the third, the first one again, waits meanwhile. It
// reads 4 blocks from the store once the second has given its memory back: 4 calls of 10 us and 16 MiB / 25 GB/s, then 44 tokens padded
// to 48 on top of 256.
TEST(PoolsStore, IsAskedWhenTheSchedulerTakesTheRequest) {
  const auto [records, summary] = serve(lone_setup(100), {kFamily.at(0, 300), kOther.at(0, 380), kFamily.at(0, 300)});
  const RequestRecord& r = record_of(records, 2);
  EXPECT_EQ(r.hit_tokens, 256);
  EXPECT_EQ(summary.stores[0].use.loaded_bytes, 16 << 20) << "once";
  EXPECT_EQ(summary.stores[0].use.written_blocks, 4 + 5) << "each content once";
  const auto copied = [](double blocks) { return blocks * (10e3 + 4194304 / 25.0); };
  // The memory of the second prompt is held until its copy to the store has ended.
  const double free_at = static_cast<double>(ns(record_of(records, 1).first_token)) + copied(5);
  EXPECT_NEAR(static_cast<double>(ns(r.scheduled)), free_at + copied(4), 2.01);
  EXPECT_EQ(ns(r.first_token) - ns(r.scheduled), 5'969);
}

// The request comes while the store has its prompt, and is taken after another prompt has evicted it there.
TEST(PoolsStore, AHitThatIsEvictedBeforeItsRequestIsTakenDoesNotCount) {
  const Family other(2, 300);
  const auto hits = [&](std::int64_t store_blocks) {
    const auto [records, summary] =
        serve(lone_setup(store_blocks), {kFamily.at(0, 300), other.at(50, 300, 60), request_at(50.001, 380, 3), kFamily.at(50.002, 300)});
    EXPECT_EQ(summary.stores[0].use.no_room_blocks, 0);
    EXPECT_EQ(summary.stores[0].use.loaded_bytes, std::int64_t{record_of(records, 3).hit_tokens / 64} * (4 << 20));
    return record_of(records, 3).hit_tokens;
  };
  EXPECT_EQ(hits(100), 256);
  EXPECT_EQ(hits(4), 0);
}

TEST(PoolsStore, BlocksThatTheGpuHasAreNotRead) {
  const auto [records, summary] = serve(lone_setup(100, 100), {kFamily.at(0, 300), kFamily.at(50, 300)});
  EXPECT_EQ(record_of(records, 1).hit_tokens, 288);
  EXPECT_EQ(summary.stores[0].use.loaded_bytes, 0);
}

// A request that waits for its copy keeps the next one from nothing: 100 tokens fit next to it.
TEST(PoolsStore, ALoadBlocksNoOtherRequest) {
  const Recorder records =
      records_of(lone_setup(100, 30), {kFamily.at(0, 300), kOther.at(50, 380), kFamily.at(100, 300), request_at(100, 100, 3)});
  EXPECT_EQ(record_of(records, 2).hit_tokens, 256);
  EXPECT_EQ(ns(record_of(records, 3).first_token), 100'000'000 + 7'080);
  EXPECT_GT(ns(record_of(records, 2).first_token), 100'400'000);
}

TEST(PoolsStore, ALaterTurnReadsTheTurnBeforeIt) {
  const Family family(1, 640), other(2, 790);
  TraceRequest first = family.at(0, 300), second = family.at(0, 640);
  first.session = second.session = 7;
  second.is_follow_up = true;
  second.delay = Span(50'000'000);
  const auto [records, summary] = serve(lone_setup(100, 50), {first, second, other.at(20, 790)});
  EXPECT_EQ(record_of(records, 1).hit_tokens, 256);
  EXPECT_EQ(summary.stores[0].use.loaded_bytes, 16 << 20);
}

// Every prompt comes five times at time 0: all rounds but the first are read, with fast-forward on and off, for each writer to the stores.
TEST(PoolsStore, ABacklogOfRepeatedPromptsIsReadWithFastForwardOnAndOff) {
  for (const std::uint32_t replicas : {1U, 2U}) {
    const SimSetup setup = one_pool_setup(pools_setup(replicas, 0, "mooncake"), replicas, 120, 1000);
    std::vector<Family> families;
    for (std::int32_t i = 0; i < 12; ++i) families.emplace_back(i, 260 + 32 * i);
    Workload workload;
    for (int round = 0; round < 5; ++round)
      for (std::int32_t i = 0; i < 12; ++i)
        workload.requests.push_back(families[static_cast<std::size_t>(i)].at(0, 260 + 32 * i, 20 + 7 * i));
    ASSERT_EQ(run(setup, workload, false), run(setup, workload, true));
    const auto [records, summary] = serve(setup, workload.requests);
    std::int64_t hits = 0, most = 0;
    for (const RequestRecord& r : records.requests) {
      hits += r.hit_tokens / 64;
      most += r.prompt_tokens / 64;
    }
    EXPECT_GE(hits * 5, most * 5 / 2) << replicas << " replicas";
    std::int64_t loaded = 0;
    for (const StoreUse& store : summary.stores) loaded += store.use.loaded_bytes;
    EXPECT_GT(loaded, 0);
  }
}

// Backlogs of repeated prompts with every scheduler of paged memory, and stores that evict while requests wait, also those of other
// replicas that the dispatcher names.
TEST(PoolsStore, DrawnBacklogsAreTheSameWithFastForwardOnAndOff) {
  std::int64_t loaded = 0, evicted = 0;
  const auto [first, count] = test::drawn_seeds(60, 10);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(seed);
    const auto draw = [&](std::uint64_t step, std::uint64_t below) { return Draw{seed, Purpose::kTest, 0, step, 0}.below(below); };
    const std::vector<std::string> schedulers{"vllm_v1", "sarathi", "vllm_v0", "sglang", "fastgen"};
    SimSetup setup =
        one_pool_setup(pools_setup(2, 0, draw(0, 2) == 0 ? "mooncake" : "least_outstanding", basic_setup(schedulers[draw(1, 5)], "{}")),
                       static_cast<std::uint32_t>(1 + draw(2, 3)), static_cast<std::int64_t>(50 + draw(3, 100)),
                       static_cast<std::int64_t>(8 + draw(4, 60)));
    setup.pools[0].link = {1e12, Span{100}};
    std::vector<Family> families;
    for (std::uint64_t i = 0; i < 6; ++i) families.emplace_back(seed * 10 + i, static_cast<std::int32_t>(100 + draw(10 + i, 500)));
    Workload workload;
    for (std::uint64_t i = 0; i < 60; ++i) {
      const Family& family = families[draw(100 + i, 6)];
      const auto prompt = static_cast<std::int32_t>(family.hashes.size() * 16 + draw(200 + i, 40));
      workload.requests.push_back(
          family.at(0.01 * static_cast<double>(i / 20 * draw(5, 100)), prompt, static_cast<std::int32_t>(1 + draw(300 + i, 120))));
    }
    ASSERT_EQ(run(setup, workload, false), run(setup, workload, true));
    Recorder records;
    for (const StoreUse& store : run_into(records, setup, workload.requests).stores) {
      loaded += store.use.loaded_bytes;
      evicted += store.evicted_blocks;
      EXPECT_EQ(store.kept_blocks, store.use.written_blocks - store.evicted_blocks);
    }
  }
  EXPECT_GT(loaded, 0);
  EXPECT_GT(evicted, 0);
}

}  // namespace
}  // namespace kvlab::testing
