#include <cmath>
#include <set>

#include "tests/policies/fake_fleet.h"

namespace kvlab {
namespace {

std::uint32_t route(Dispatcher& dispatcher, FakeFleet fleet, std::uint64_t number, std::int64_t session = -1) {
  RequestRecord arrival;
  arrival.session = session;
  arrival.prompt_tokens = 100;
  fleet.asked = number;
  std::vector<ReplicaId> among;
  for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i) among.push_back(ReplicaId{i});
  return index(dispatcher.place({Stage::kPrefill, arrival, among}, fleet).replica);
}

TEST(Dispatchers, SayWhetherTheyReadLoad) {
  for (const char* name : {"random", "round_robin"}) EXPECT_FALSE(make_dispatcher(name)->reads_load()) << name;
  for (const char* name : {"least_outstanding", "least_kv", "least_tokens", "power_of_two", "prefix_affinity"})
    EXPECT_TRUE(make_dispatcher(name)->reads_load()) << name;
}

TEST(Dispatchers, OneReplicaGetsEverything) {
  const FakeFleet fleet(1);
  for (const std::string& name : DispatcherRegistry::names()) {
    const auto dispatcher = make_dispatcher(name);
    for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(route(*dispatcher, fleet, i), 0U) << name;
  }
}

TEST(RoundRobinDispatcher, TakesTurns) {
  const FakeFleet fleet(3);
  const auto dispatcher = make_dispatcher("round_robin");
  for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(route(*dispatcher, fleet, i), i % 3);
}

// 4000 draws over 4 replicas: 1000 +- 4 sqrt(4000 * 1/4 * 3/4) = 110 each.
TEST(RandomDispatcher, IsUniformAndRepeatable) {
  const FakeFleet fleet(4);
  const auto dispatcher = make_dispatcher("random"), again = make_dispatcher("random");
  std::vector<int> count(4, 0);
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const std::uint32_t chosen = route(*dispatcher, fleet, i);
    ++count[chosen];
    ASSERT_EQ(chosen, route(*again, fleet, i));
  }
  for (const int n : count) EXPECT_NEAR(n, 1000, 110);
  again->set_seed(8);
  int same = 0;
  for (std::uint64_t i = 0; i < 4000; ++i) same += route(*dispatcher, fleet, i) == route(*again, fleet, i) ? 1 : 0;
  EXPECT_NEAR(same, 1000, 110);  // another seed draws independently
}

TEST(RandomDispatcher, StickySessionsStay) {
  const FakeFleet fleet(4);
  const auto dispatcher = make_dispatcher("random", "{sticky_sessions: true}");
  std::set<std::uint32_t> of_session, without;
  for (std::uint64_t i = 0; i < 50; ++i) {
    of_session.insert(route(*dispatcher, fleet, i, 3));
    without.insert(route(*dispatcher, fleet, i));
  }
  EXPECT_EQ(of_session.size(), 1U);
  EXPECT_EQ(without.size(), 4U);
  std::set<std::uint32_t> all;
  for (std::int64_t session = 0; session < 50; ++session) all.insert(route(*dispatcher, fleet, 0, session));
  EXPECT_EQ(all.size(), 4U);
}

ReplicaLoad load(std::int64_t waiting, std::int64_t running, std::int64_t used_blocks = 0, std::int64_t num_blocks = 100) {
  return {waiting, running, 0, used_blocks, num_blocks};
}

struct Choice {
  const char* dispatcher;
  std::uint32_t chosen;
  std::vector<ReplicaLoad> loads;
  std::vector<std::int64_t> tokens{}, cached{0, 0, 0};
  const char* params = "{}";
};

const char* const kUnbalanced = "{balance_abs_threshold: 4, balance_rel_threshold: 2}";

const Choice kChoices[] = {
    {"least_outstanding", 0, {load(0, 0), load(0, 0), load(0, 0)}},  // ties go to the first
    {"least_outstanding", 0, {load(0, 2), load(1, 1), load(3, 0)}},
    {"least_outstanding", 1, {load(1, 2), load(1, 1), load(3, 0)}},
    {"least_kv", 1, {load(0, 0, 30), load(9, 9, 50, 200), load(0, 0, 20, 50)}},  // 0.30, 0.25, 0.40
    {"least_kv", 0, {load(0, 0, 30), load(9, 9, 60, 200), load(0, 0, 20, 50)}},  // 0.30 twice
    {"least_tokens", 2, {load(0, 1), load(0, 7), load(6, 0)}, {900, 300, 300}},  // 300 twice: 6 requests are fewer than 7
    {"least_tokens", 1, {load(0, 1), load(0, 7), load(6, 0)}, {900, 300, 301}},
    // Prompts have 100 tokens; the threshold is 0.3: 31 cached tokens decide, 30 do not, and no replica has a request yet: the first.
    {"prefix_affinity", 2, {load(0, 0), load(0, 0), load(0, 0)}, {}, {0, 10, 31}},
    {"prefix_affinity", 0, {load(0, 0), load(0, 0), load(0, 0)}, {}, {0, 10, 30}},
    {"prefix_affinity", 1, {load(0, 3), load(0, 1), load(0, 1)}, {}, {50, 50, 50}},  // equal hits go to the less loaded
    // Unbalanced needs both: more than 4 requests apart and more than 2 times as many. Then the shortest queue decides.
    {"prefix_affinity", 0, {load(0, 4), load(0, 0)}, {}, {90, 0}, kUnbalanced},   // 4 apart
    {"prefix_affinity", 1, {load(0, 5), load(0, 0)}, {}, {90, 0}, kUnbalanced},   // 5 apart, and more than 0
    {"prefix_affinity", 0, {load(0, 10), load(5, 0)}, {}, {90, 0}, kUnbalanced},  // 5 apart, exactly twice
    {"prefix_affinity", 1, {load(0, 11), load(5, 0)}, {}, {90, 0}, kUnbalanced}};

TEST(Dispatchers, ChooseByLoad) {
  for (const Choice& c : kChoices) {
    FakeFleet fleet(c.loads.size());
    fleet.loads = c.loads;
    fleet.tokens = c.tokens;
    fleet.cached = c.cached;
    EXPECT_EQ(route(*make_dispatcher(c.dispatcher, c.params), fleet, 0), c.chosen) << &c - kChoices;
  }
}

// Among n replicas with loads 0, 1, 2, 3 the k-th least loaded is chosen when it is drawn with a more loaded one: of 6 pairs replica 0 wins
// 3, replica 1 wins 2, replica 2 wins 1, replica 3 none. 6000 draws, 4 sigma = 155 at p = 1/2.
TEST(PowerOfTwoDispatcher, ChoosesTheLessLoadedOfTwo) {
  FakeFleet fleet(4);
  for (std::size_t i = 0; i < 4; ++i) fleet.loads[i].waiting = static_cast<std::int64_t>(i);
  const auto dispatcher = make_dispatcher("power_of_two");
  std::vector<int> count(4, 0);
  for (std::uint64_t i = 0; i < 6000; ++i) ++count[route(*dispatcher, fleet, i)];
  EXPECT_NEAR(count[0], 3000, 155);
  EXPECT_NEAR(count[1], 2000, 155);
  EXPECT_NEAR(count[2], 1000, 155);
  EXPECT_EQ(count[3], 0);
}

TEST(PowerOfTwoDispatcher, EqualLoadsAreSpread) {
  const FakeFleet fleet(2);
  const auto dispatcher = make_dispatcher("power_of_two");
  int second = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) second += static_cast<int>(route(*dispatcher, fleet, i));
  EXPECT_NEAR(second, 500, 4 * std::sqrt(250.0));
}

// Without hits content goes where least was sent so far. Request 1 hits 60 of its 100 tokens on replica 0, which so was sent
// 100 + 40; replicas 1 and 2 are next.
TEST(PrefixAffinityDispatcher, NewContentGoesWhereLeastWasSent) {
  FakeFleet fleet(3);
  const auto dispatcher = make_dispatcher("prefix_affinity");
  EXPECT_EQ(route(*dispatcher, fleet, 0), 0U);
  fleet.cached = {60, 0, 0};
  EXPECT_EQ(route(*dispatcher, fleet, 1), 0U);
  fleet.cached = {0, 0, 0};
  EXPECT_EQ(route(*dispatcher, fleet, 2), 1U);
  EXPECT_EQ(route(*dispatcher, fleet, 3), 2U);
  EXPECT_EQ(route(*dispatcher, fleet, 4), 1U);  // 140, 100, 100
}

TEST(DistServe, SendsToTheFewestRequests) {
  AskedFleet f({2, 2}, "distserve");
  f.fleet.loads[0].waiting = 2;
  f.fleet.loads[1].running = 1;
  EXPECT_EQ(f.prefill(0), "1");
  f.fleet.loads[2] = {0, 3, 0, 10, 100};
  f.fleet.loads[3] = {1, 1, 0, 60, 100};
  EXPECT_EQ(f.decode(0), "3");
}

// 5 % of 100 blocks.
TEST(DistServe, AcceptsWhileTheQueueNeedsLessThanItsShare) {
  FakeFleet fleet(1, 1);
  fleet.loads[1] = {1, 1, 0, 50, 100};
  fleet.queued[1] = 4;
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve"), fleet, 0), "1");
  fleet.queued[1] = 5;
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve"), fleet, 0), "hold 1");
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve", "{waiting_blocks_frac: 0.06}"), fleet, 0), "1");
}

// 100 prompt tokens and the first output token are 11 blocks, beside those that are held and those that the queue will take.
TEST(DistServe, AcceptsOnlyRequestsThatFit) {
  FakeFleet fleet(1, 1);
  fleet.loads[1] = {1, 1, 0, 88, 100};
  fleet.queued[1] = 1;
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve"), fleet, 0), "1");
  fleet.loads[1].used_blocks = 89;
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve"), fleet, 0), "hold 1");
}

// An idle instance makes no step after which it could be asked again.
TEST(DistServe, NeverHoldsForAnIdleInstance) {
  FakeFleet fleet(1, 1);
  fleet.loads[1].used_blocks = 95;
  EXPECT_EQ(ask_decode(*make_dispatcher("distserve", "{waiting_blocks_frac: 0}"), fleet, 0), "1");
}

TEST(DistServe, AcceptsFirstComeFirstServed) {
  AskedFleet f({1, 1}, "distserve");
  f.fleet.loads[1] = {0, 1, 0, 60, 100};
  EXPECT_EQ(f.decode(7, 500), "hold 1");
  EXPECT_EQ(f.decode(8, 10), "hold 1");  // would fit, and came later
  EXPECT_EQ(f.decode(7, 500), "hold 1");
  f.fleet.loads[1].used_blocks = 40;
  EXPECT_EQ(f.decode(7, 500), "1");
  EXPECT_EQ(f.decode(8, 10), "1");
  EXPECT_EQ(f.decode(9, 10), "1");  // no request is left before it
}

TEST(DistServe, UnacceptedRequestsAreLoadAndStayWithTheirInstance) {
  AskedFleet f({1, 2}, "distserve");
  f.fleet.loads[1] = {0, 2, 0, 100, 100};
  f.fleet.loads[2] = {0, 3, 0, 100, 100};
  EXPECT_EQ(f.decode(0), "hold 1");  // 2 against 3
  EXPECT_EQ(f.decode(1), "hold 1");  // 3 against 3
  EXPECT_EQ(f.decode(2), "hold 2");  // 4 against 3
  f.fleet.loads[2] = {0, 1, 0, 10, 100};
  EXPECT_EQ(f.decode(0), "hold 1");
  EXPECT_EQ(f.decode(2), "2");
}

std::vector<std::int32_t> share_of(Dispatcher& dispatcher, std::int32_t images, std::vector<std::int64_t> waiting) {
  const RequestRecord request;
  std::vector<std::int32_t> share(waiting.size(), 0);
  dispatcher.place_images({request, images, waiting}, share);
  return share;
}

// Each image goes to the replica with the fewest, those given before counted.
TEST(Epd, SpreadsTheImagesOfARequest) {
  const auto dispatcher = make_dispatcher("epd");
  EXPECT_EQ(share_of(*dispatcher, 5, {0, 0, 0}), (std::vector<std::int32_t>{2, 2, 1}));
  EXPECT_EQ(share_of(*dispatcher, 5, {3, 0, 1}), (std::vector<std::int32_t>{0, 3, 2}));
  EXPECT_EQ(share_of(*dispatcher, 1, {3, 2, 2}), (std::vector<std::int32_t>{0, 1, 0}));
}

TEST(Epd, WithoutParallelEncodingARequestHasOneEncoder) {
  EXPECT_EQ(share_of(*make_dispatcher("epd", "{parallel_encode: false}"), 5, {3, 0, 1}), (std::vector<std::int32_t>{0, 5, 0}));
  EXPECT_EQ(share_of(*make_dispatcher("distserve"), 5, {3, 1, 1}), (std::vector<std::int32_t>{0, 5, 0}));
}

// 5 % of 100 blocks at either stage; 100 prompt tokens are 10 blocks.
TEST(Epd, BothStagesPull) {
  FakeFleet fleet(1, 1);
  fleet.loads[0] = {1, 1, 0, 50, 100};
  fleet.queued[0] = 4;
  EXPECT_EQ(ask_prefill(*make_dispatcher("epd"), fleet, 0), "0");
  fleet.queued[0] = 5;
  EXPECT_EQ(ask_prefill(*make_dispatcher("epd"), fleet, 0), "hold 0");
  fleet.queued[0] = 0;
  fleet.loads[0].used_blocks = 91;
  EXPECT_EQ(ask_prefill(*make_dispatcher("epd"), fleet, 0), "hold 0");
  fleet.loads[1] = {3, 1, 0, 50, 100};
  EXPECT_EQ(ask_decode(*make_dispatcher("epd"), fleet, 0), "1");
  EXPECT_EQ(ask_decode(*make_dispatcher("epd", "{decode_waiting_requests: 3}"), fleet, 0), "1");
  EXPECT_EQ(ask_decode(*make_dispatcher("epd", "{decode_waiting_requests: 2}"), fleet, 0), "hold 1");
}

}  // namespace
}  // namespace kvlab
