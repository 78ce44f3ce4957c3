#include "tests/policies/fake_fleet.h"

namespace kvlab {
namespace {

using namespace std::chrono_literals;

// 1 ms for each prompt token, 1 ms for each request that decodes.
FakeFleet timed_fleet() {
  FakeFleet fleet(2, 2);
  fleet.prefill_token_s = 1e-3;
  fleet.decode_row_s = 1e-3;
  return fleet;
}

TEST(Mooncake, TheEarliestFirstTokenWins) {
  AskedFleet f(timed_fleet(), "mooncake");
  f.fleet.loads[0].outstanding_tokens = 100;  // 100 + 100 ms
  f.fleet.loads[1].outstanding_tokens = 150;
  f.fleet.cached[1] = 60;  // 150 + 40 ms
  EXPECT_EQ(f.prefill(0), "1");
  f.fleet.cached[1] = 40;  // 150 + 60 ms
  EXPECT_EQ(f.prefill(1), "0");
}

// A prompt of 1,000 tokens of which replica 0 stores 600. Its queue takes 500 ms more.
FakeFleet fleet_with_store() {
  FakeFleet fleet = timed_fleet();
  fleet.stored = {600, 0, 0, 0};
  fleet.fetch_token_s.assign(4, 1e-4);  // a tenth of the time to compute them
  fleet.loads[0].outstanding_tokens = 1000;
  return fleet;
}

// Replica 0: 1,000 + 400 ms. Replica 1: 60 + 400 ms with the prefix, 1,000 ms without.
TEST(Mooncake, APrefixIsFetchedToWhereTheQueueIsShort) {
  AskedFleet f(fleet_with_store(), "mooncake");
  EXPECT_EQ(f.prefill(0, 1000), "1 from 0");
  f.fleet.loads[0].outstanding_tokens = 50;  // 50 + 400 ms
  EXPECT_EQ(f.prefill(1, 1000), "0");
  f.fleet.loads[0].outstanding_tokens = 1000;
  f.fleet.stored.clear();
  EXPECT_EQ(f.prefill(2, 1000), "1");
}

TEST(Mooncake, APrefixThatIsLittleLongerIsComputed) {
  AskedFleet f(fleet_with_store(), "mooncake");
  f.fleet.cached[1] = 400;
  EXPECT_EQ(f.prefill(0, 1000), "1");  // 600 is no more than 1.5 times 400
  f.fleet.cached[1] = 399;
  EXPECT_EQ(f.prefill(1, 1000), "1 from 0");
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", "{fetch_ratio: 2}"), f.fleet, 2, 1000), "1");
  f.fleet.cached[1] = 0;
  f.fleet.stored[1] = 400;  // in its own store
  EXPECT_EQ(f.prefill(3, 1000), "1");
}

// The store whose link is free is chosen among those with an equal prefix; a shorter prefix is never chosen.
TEST(Mooncake, TheNearestOfTheLongestPrefixesIsFetched) {
  FakeFleet fleet = fleet_with_store();
  fleet.stored = {600, 0, 600, 500};
  fleet.fetch_token_s = {2e-4, 1e-4, 1e-4, 1e-5};
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake"), fleet, 0, 1000), "1 from 2");
}

// The wait for the link is a part of the time to the first token.
TEST(Mooncake, ASlowFetchMayExceedTheLimit) {
  FakeFleet fleet = fleet_with_store();
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", "{ttft_ms: 500}"), fleet, 0, 1000), "1 from 0");
  fleet.fetch_token_s.assign(4, 2e-4);  // 120 + 400 ms
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", "{ttft_ms: 500}"), fleet, 0, 1000), "reject");
}

TEST(Mooncake, EachReplicaIsPricedOnce) {
  const FakeFleet fleet = timed_fleet();
  ask_decode(*make_dispatcher("mooncake", "{tbt_ms: 100, early_rejection: by_current_load}"), fleet, 0);
  EXPECT_EQ(fleet.decode_prices, 2);
}

TEST(Mooncake, WithoutStepTimesTheFewestPromptTokens) {
  FakeFleet fleet(2, 2);
  fleet.loads[0].outstanding_tokens = 100;
  fleet.loads[1].outstanding_tokens = 99;
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", "{ttft_ms: 1, tbt_ms: 1}"), fleet, 0), "1");
}

// Instance 2: 11 rows and 200 tokens, 11 + 2 ms. Instance 3: 6 rows and 900 tokens, 6 + 9 ms, or 400 tokens, 6 + 4 ms.
TEST(Mooncake, TheShortestDecodeStepWins) {
  FakeFleet fleet = timed_fleet();
  fleet.decode_token_s = 1e-5;
  fleet.loads[2] = {0, 10, 0, 10, 100};
  fleet.loads[3] = {3, 2, 0, 50, 100};
  fleet.queued[3] = 30;
  EXPECT_EQ(ask_decode(*make_dispatcher("mooncake"), fleet, 0), "2");
  fleet.loads[3].used_blocks = 0;
  EXPECT_EQ(ask_decode(*make_dispatcher("mooncake"), fleet, 0), "3");
}

TEST(Mooncake, RejectsALateFirstToken) {
  AskedFleet f(timed_fleet(), "mooncake", "{ttft_ms: 250}");
  f.fleet.loads[0].outstanding_tokens = f.fleet.loads[1].outstanding_tokens = 100;
  EXPECT_EQ(f.prefill(0), "0");
  f.fleet.loads[0].outstanding_tokens = f.fleet.loads[1].outstanding_tokens = 200;
  EXPECT_EQ(f.prefill(1), "reject");
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake"), f.fleet, 1), "0");  // no limit
}

// Ten requests decode on either instance; one more makes a step of 11 ms. They began at 0 and decode for 10 s.
FakeFleet busy_decode(Span now) {
  FakeFleet fleet = timed_fleet();
  fleet.at = kStart + now;
  for (const std::size_t i : {2U, 3U}) {
    fleet.loads[i] = {0, 10, 0, 0, 100};
    for (std::uint64_t k = 0; k < 10; ++k) fleet.queues[i].run(10 * i + k, 10, 1);
  }
  return fleet;
}

TEST(Mooncake, WithoutEarlyRejectionPromptsAreComputedInVain) {
  const auto dispatcher = make_dispatcher("mooncake", "{tbt_ms: 10.5, early_rejection: none}");
  EXPECT_EQ(ask_prefill(*dispatcher, busy_decode(0s), 0), "0");
  EXPECT_EQ(ask_decode(*dispatcher, busy_decode(0s), 0), "reject");
  EXPECT_EQ(ask_decode(*make_dispatcher("mooncake", "{tbt_ms: 11.5, early_rejection: none}"), busy_decode(0s), 0), "2");
}

TEST(Mooncake, TheCurrentLoadRejectsAtArrival) {
  const auto dispatcher = make_dispatcher("mooncake", "{tbt_ms: 10.5, early_rejection: by_current_load}");
  EXPECT_EQ(ask_prefill(*dispatcher, busy_decode(9950ms), 0), "reject");  // though all of them are about to end
  EXPECT_EQ(ask_decode(*dispatcher, busy_decode(9950ms), 0), "reject");
  EXPECT_EQ(ask_prefill(*dispatcher, timed_fleet(), 1), "0");
}

// The prompt takes 100 ms.
TEST(Mooncake, ThePredictedLoadIsThatAtTheEndOfThePrompt) {
  const auto dispatcher = make_dispatcher("mooncake", "{tbt_ms: 10.5}");
  EXPECT_EQ(ask_prefill(*dispatcher, busy_decode(9950ms), 0), "0");
  EXPECT_EQ(ask_prefill(*dispatcher, busy_decode(9850ms), 1), "reject");
  EXPECT_EQ(ask_decode(*dispatcher, busy_decode(0s), 0), "2");  // it was checked at arrival
}

// Prompts before this one take 1 s. Each decode instance gets half of the requests that wait on both prefill instances.
TEST(Mooncake, PromptsThatWillBeComputedAreDecodeLoad) {
  const auto waiting = [](std::int64_t requests) {
    FakeFleet fleet = timed_fleet();
    for (const std::size_t i : {0U, 1U}) fleet.loads[i] = {requests - 1, 1, 1000, 0, 100};
    return fleet;
  };
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", "{tbt_ms: 10.5}"), waiting(9), 0), "0");
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", "{tbt_ms: 10.5}"), waiting(10), 0), "reject");
  // Those whose prompts end before 0.6 s have been decoded by 1.1 s.
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", "{tbt_ms: 10.5, decode_s: 0.5}"), waiting(10), 0), "0");
}

// Requests that came since the latest plan are in no list yet.
TEST(Mooncake, RequestsThatAreNotListedAreDecodeLoad) {
  FakeFleet fleet = timed_fleet();
  fleet.loads[2].waiting = fleet.loads[3].waiting = 10;
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", "{tbt_ms: 10.5}"), fleet, 0), "reject");
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", "{tbt_ms: 11.5}"), fleet, 0), "0");
}

TEST(Mooncake, AnInstanceOfBothStagesDecodesItsOwnPrompts) {
  FakeFleet fleet(2);
  fleet.prefill_token_s = fleet.decode_row_s = 1e-3;
  fleet.loads[0] = {0, 10, 0, 0, 100};
  fleet.loads[1] = {0, 2, 500, 0, 100};
  const std::string limits = "{tbt_ms: 10.5, early_rejection: by_current_load}";
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", limits), fleet, 0), "reject");  // replica 1 could decode it
  fleet.loads[0].running = 9;
  EXPECT_EQ(ask_prefill(*make_dispatcher("mooncake", limits), fleet, 0), "0");
}

}  // namespace
}  // namespace kvlab
