// The store of prompts in CPU memory (Mooncake): prefixes come from a replica's own memory, or over the links from another's.
#include <gtest/gtest.h>

#include "tests/sim/pools_support.h"

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

const RequestRecord& record_of(const Recorder& records, std::uint64_t number) {
  return *std::find_if(records.requests.begin(), records.requests.end(), [&](const RequestRecord& r) { return r.number == number; });
}

// 300 tokens have 4 full blocks of the store, 16 of GPU memory. They come in 4 calls of 1 ms and 16 MiB / 1 GB/s; the rest is a step of 44
// tokens, padded to 48, on top of 256: 5 us + 48 * 20 ns + 256 * 37 ps.
TEST(PoolsStore, AnotherReplicasPrefixIsFetched) {
  const Family family(1, 300);
  Recorder records;
  const RunSummary summary = run_into(records, store_setup({{0, 0}, {1, 0}}), {family.at(0, 300), family.at(50, 300)});
  ASSERT_EQ(records.transfers.size(), 3U);
  const TransferRecord& t = records.transfers[1];
  EXPECT_EQ(t.request, 1U);
  EXPECT_EQ(t.from, 0U);
  EXPECT_EQ(t.to, 1U);
  EXPECT_EQ(t.tokens, 256);
  EXPECT_EQ(t.bytes, 16 << 20);
  EXPECT_EQ(t.calls, 4);
  EXPECT_EQ(ns(t.asked), 50'000'000);
  EXPECT_EQ(ns(t.end), 50'000'000 + 4 * 1'000'000 + 16'777'216);
  const RequestRecord& r = record_of(records, 1);
  EXPECT_EQ(r.hit_tokens, 256);
  EXPECT_EQ(r.scheduled, t.end);
  EXPECT_EQ(ns(r.first_token) - ns(t.end), 5'969);
  ASSERT_EQ(summary.stores.size(), 2U);
  EXPECT_EQ(summary.stores[1].kept_blocks, 4);  // the copy stays where it went
  EXPECT_EQ(summary.stores[1].use.loaded_bytes, 0);
  EXPECT_EQ(summary.stores[0].block_bytes, 4 << 20);
  std::int64_t in = 0, out = 0;
  for (const LinkUse& link : summary.links) (link.is_egress ? out : in) += link.bytes;
  EXPECT_EQ(in, out);
  EXPECT_EQ(in, t.bytes + records.transfers[0].bytes + records.transfers[2].bytes);
}

// The fetch pays where it is faster than computing the prefix, here 5 us + 300 * 20 ns.
TEST(PoolsStore, AFastLinkBringsTheFirstTokenForward) {
  const Family family(1, 300);
  const auto ttft = [&](const LinkSetup& link, std::uint32_t from) {
    SimSetup setup = store_setup({{0, 0}, {1, from}});
    for (PoolSetup& pool : setup.pools) pool.link = link;
    Recorder records;
    run_into(records, setup, {family.at(0, 300), family.at(50, 300)});
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
  const Family family(1, 300), other(2, 380);
  SimSetup setup = store_setup({{0, 0}, {0, 0}, {0, 0}});
  setup.pools[0].memory.num_blocks = 24;
  Recorder records;
  const RunSummary summary = run_into(records, setup, {family.at(0, 300), other.at(50, 380), family.at(100, 300)});
  EXPECT_EQ(record_of(records, 1).hit_tokens, 0);
  const RequestRecord& r = record_of(records, 2);
  EXPECT_EQ(r.hit_tokens, 256);
  EXPECT_NEAR(static_cast<double>(ns(r.scheduled)), 100e6 + 4 * 10e3 + 16777216 / 25.0, 1.01);
  EXPECT_EQ(summary.stores[0].use.loaded_bytes, 16 << 20);
  EXPECT_EQ(summary.stores[0].kept_blocks, 4 + 5);
}

// Swaps in 8 bits halve the bytes of swapped blocks alone.
TEST(PoolsStore, IsReadAsItIsOnTheGpuWithSwapsInEightBits) {
  const Family family(1, 300), other(2, 380);
  const auto scheduled = [&](std::int64_t swapped_bytes) {
    SimSetup setup = store_setup({{0, 0}, {0, 0}, {0, 0}});
    setup.pools[0].memory.num_blocks = 24;
    setup.pools[0].memory.swap.codec.block_bytes = swapped_bytes;
    Recorder records;
    run_into(records, setup, {family.at(0, 300), other.at(50, 380), family.at(100, 300)});
    EXPECT_EQ(record_of(records, 2).hit_tokens, 256);
    return ns(record_of(records, 2).scheduled);
  };
  EXPECT_EQ(scheduled(1 << 19), scheduled(0));
}

// Half of what is fetched is in the own store already: 2 blocks come from there, at the same time.
TEST(PoolsStore, AFetchTakesWhatIsMissing) {
  const Family family(1, 300);
  Family half(1, 160);
  SimSetup setup = store_setup({{0, 0}, {1, 1}, {1, 1}, {1, 0}});
  setup.pools[0].memory.num_blocks = 24;
  Recorder records;
  const Family other(2, 380);
  const RunSummary summary = run_into(records, setup, {family.at(0, 300), half.at(50, 160), other.at(100, 380), family.at(150, 300)});
  const RequestRecord& r = record_of(records, 3);
  EXPECT_EQ(r.hit_tokens, 256);
  EXPECT_EQ(summary.stores[1].use.loaded_bytes, 8 << 20);
  const auto fetched =
      std::find_if(records.transfers.begin(), records.transfers.end(), [](const TransferRecord& t) { return t.request == 3 && t.to == 1; });
  ASSERT_NE(fetched, records.transfers.end());
  EXPECT_EQ(fetched->bytes, 8 << 20);
  EXPECT_EQ(fetched->calls, 2);
  EXPECT_EQ(r.scheduled, fetched->end);
}

// While one prompt waits for its prefix, another is computed.
TEST(PoolsStore, OtherPromptsGoOnMeanwhile) {
  const Family family(1, 300);
  Recorder records;
  run_into(records, store_setup({{0, 0}, {1, 0}, {1, 1}}), {family.at(0, 300), family.at(50, 300), request_at(51, 100, 3)});
  EXPECT_EQ(ns(record_of(records, 2).first_token), 51'000'000 + 7'080);
  EXPECT_GT(ns(record_of(records, 1).first_token), 70'000'000);
}

// A prompt with an image goes to the encode replica first, and then to the replica that the dispatcher chose, with the prefix that it
// named.
TEST(PoolsStore, APrefixIsFetchedAfterImagesAreEncoded) {
  const Family family(1, 300);
  SimSetup setup = store_setup({{0, 0}, {1, 0}});
  const auto pass = [](std::int64_t) { return EncodeWork{to_ps(Span(1'000'000)), {}, 1, 1}; };
  setup.images = {50, 1'000'000, {{"encode", 1, 1, setup.link, pass}}};
  RequestFacts facts;
  facts.images = 1;
  TraceRequest with_image = family.at(50, 350);
  with_image.facts = &facts;
  Recorder records;
  run_into(records, setup, {family.at(0, 300), with_image});
  const RequestRecord& r = record_of(records, 1);
  EXPECT_EQ(r.replica, 2U) << "its decode replica";
  EXPECT_EQ(r.hit_tokens, 256);
  const auto fetched = std::count_if(records.transfers.begin(), records.transfers.end(),
                                     [](const TransferRecord& t) { return t.request == 1 && t.from == 0 && t.to == 1; });
  EXPECT_EQ(fetched, 1);
}

// A request that is refused gives its references back; the store would not be able to take the next prompt otherwise.
TEST(PoolsStore, RefusedRequestsLeaveNoReferences) {
  const Family family(1, 300), other(2, 300);
  SimSetup setup = store_setup({{0, 0}, {0, 0}, {0, 0}, {0, 0}}, 4);
  setup.pools[0].memory.num_blocks = 24;
  setup.pools[0].max_model_len = 400;
  Recorder records;
  const RunSummary summary =
      run_into(records, setup, {family.at(0, 300), request_at(25, 380, 3), family.at(50, 300, 200), other.at(100, 300)});
  EXPECT_EQ(summary.latencies.rejected, 1U);
  EXPECT_EQ(summary.stores[0].use.no_room_blocks, 0);
  EXPECT_EQ(summary.stores[0].use.written_blocks, 8);
  EXPECT_EQ(summary.stores[0].evicted_blocks, 4);
}

// The queue of replica 0 takes 8 ms. Replica 1 has the prefix after 60 MiB / 1 TB/s.
TEST(PoolsStore, MooncakeSendsAPromptToTheIdleReplicaAndFetchesItsPrefix) {
  const Family family(1, 960);
  SimSetup setup = pools_setup(2, 1, "mooncake");
  add_store(setup, 100);
  for (PoolSetup& pool : setup.pools) pool.link = {1e12, Span{0}};
  const std::vector<TraceRequest> requests = {family.at(0, 1000), request_at(50, 5000, 3), request_at(50.001, 8000, 3),
                                              family.at(50.002, 1000)};
  Recorder with;
  run_into(with, setup, requests);
  EXPECT_EQ(record_of(with, 3).hit_tokens, 960);
  const auto fetched = std::count_if(with.transfers.begin(), with.transfers.end(),
                                     [](const TransferRecord& t) { return t.request == 3 && t.from == 0 && t.to == 1; });
  EXPECT_EQ(fetched, 1);
  for (PoolSetup& pool : setup.pools) pool.store_blocks = 0;
  Recorder without;
  run_into(without, setup, requests);
  EXPECT_EQ(record_of(without, 3).hit_tokens, 0);  // computed on replica 1
}

}  // namespace
}  // namespace kvlab::testing
