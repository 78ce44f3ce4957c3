#include "tests/error_of.h"
#include "tests/has_all.h"
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

// Two prefill and two decode nodes.
struct FlowKvNodes : AskedFleet {
  explicit FlowKvNodes(const std::string& params = "{}") : AskedFleet({2, 2}, "flowkv", params) {}
  void load(const std::vector<std::size_t>& nodes, std::int64_t prompt_tokens, std::int64_t used_blocks) {
    for (const std::size_t i : nodes) fleet.loads[i] = {0, 1, prompt_tokens, used_blocks, 100};
  }
};

TEST(FlowKv, BalancesByLoad) {
  FlowKvNodes n;
  n.fleet.loads[0].outstanding_tokens = 200;  // 20 of 100 blocks and 200 / 2048: 0.298
  n.fleet.loads[1].used_blocks = 29;
  n.fleet.queued[1] = 100;  // not looked at
  EXPECT_EQ(n.prefill(0), "1");
  n.fleet.loads[1].used_blocks = 30;
  EXPECT_EQ(n.prefill(1), "0");
  n.fleet.loads[2].used_blocks = n.fleet.queued[2] = 30;  // 0.6
  n.fleet.loads[3].used_blocks = 50;
  EXPECT_EQ(n.decode(0), "3");
}

// The prefill nodes have a load of 6.1 (410 blocks of 100 and two steps), the decode nodes count as 0.5.
TEST(FlowKv, IdleDecodeNodesTakePrompts) {
  FlowKvNodes n;
  n.load({0, 1}, 4096, 0);
  n.load({2, 3}, 0, 10);
  EXPECT_EQ(n.prefill(0), "0");  // the controller has not looked yet
  n.look();
  EXPECT_EQ(n.prefill(1), "whole 2");
  EXPECT_EQ(n.decode(0), "2");
  n.load({2, 3}, 0, 25);  // not idle
  EXPECT_EQ(n.prefill(2), "0");
  n.load({0, 1}, 670, 0);  // 0.997, less than twice 0.5
  n.load({2, 3}, 0, 10);
  n.look();
  EXPECT_EQ(n.prefill(3), "0");
  EXPECT_TRUE(n.control.changes.empty());
}

TEST(FlowKv, IdlePrefillNodesDecode) {
  FlowKvNodes n;
  n.load({2, 3}, 0, 100);
  n.fleet.queued[2] = n.fleet.queued[3] = 50;
  n.load({0}, 0, 20);
  n.load({1}, 0, 5);
  n.look();
  EXPECT_EQ(n.decode(0), "1");
  EXPECT_EQ(n.prefill(1), "1");
  n.load({0, 1}, 170, 0);  // 0.253
  EXPECT_EQ(n.decode(2), "2");
}

// Ratio 18.3 / 0.5 against 4, three periods in a row.
TEST(FlowKv, ANodeFlipsInExtremeLoad) {
  FlowKvNodes n;
  const auto look = [&](std::int64_t prompt_tokens) {
    n.load({0, 1}, prompt_tokens, 0);
    n.look();
  };
  n.load({2}, 0, 20);
  n.load({3}, 0, 10);
  for (const std::int64_t tokens : {12288, 12288, 0, 12288, 12288}) look(tokens);
  EXPECT_TRUE(n.control.changes.empty());
  look(12288);
  EXPECT_EQ(n.control.changes, (std::vector<std::string>{"3:prefill"}));
  EXPECT_EQ(n.prefill(0), "whole 2");  // node 3 is drained
  for (int i = 0; i < 5; ++i) look(12288);
  n.fleet.stages[3] = {true, false};
  for (int i = 0; i < 5; ++i) look(12288);
  EXPECT_EQ(n.control.changes.size(), 1U);  // node 2 is the last one that decodes
}

TEST(FlowKv, TheOtherStageBeginsANewCount) {
  FlowKvNodes n("{least_load: 0.1}");
  const auto look = [&](bool prefill_is_heavier) {
    n.load({0, 1}, prefill_is_heavier ? 4096 : 0, 0);
    n.load({2, 3}, 0, prefill_is_heavier ? 0 : 100);
    n.look();
  };
  for (const bool prefill : {true, true, false, false}) look(prefill);
  EXPECT_TRUE(n.control.changes.empty());
  look(false);
  EXPECT_EQ(n.control.changes, (std::vector<std::string>{"0:decode"}));
}

TEST(FlowKv, NodesKeepTheirRolesWithoutFlip) {
  FlowKvNodes n("{flip: false}");
  EXPECT_TRUE(n.dispatcher->changes_roles());  // they still serve both stages
  n.load({0, 1}, 100'000, 0);
  for (int i = 0; i < 10; ++i) n.look();
  EXPECT_TRUE(n.control.changes.empty());
  EXPECT_EQ(n.prefill(0), "whole 2");
}

TEST(FlowKv, ExtremeIsMoreThanUnbalanced) {
  EXPECT_THAT(error_of([] { make_dispatcher("flowkv", "{imbalance_ratio: 3, extreme_ratio: 2}"); }),
              HasSubstr("less than 'imbalance_ratio'"));
}

TEST(Splitwise, EveryMachineMustTakeBothStages) { EXPECT_TRUE(make_dispatcher("splitwise")->changes_roles()); }

TEST(Splitwise, ChoosesThePairAtArrival) {
  AskedFleet f({2, 2}, "splitwise");
  f.fleet.loads = {{0, 0, 500, 0, 100}, {0, 0, 300, 0, 100}, {0, 0, 0, 30, 100}, {0, 0, 0, 20, 100}};
  EXPECT_EQ(f.prefill(0), "1");
  f.fleet.loads[3].used_blocks = 90;
  EXPECT_EQ(f.decode(0, 100, 1), "3");
}

// A token machine that has prompt tokens to compute is mixed: it takes further prompts before another token machine does.
TEST(Splitwise, TokenMachinesTakePromptsThatWouldWaitTooLong) {
  AskedFleet f({2, 2}, "splitwise", "{prompt_max_pending_tokens: 600}");
  f.fleet.loads[0].outstanding_tokens = f.fleet.loads[1].outstanding_tokens = 500;
  EXPECT_EQ(f.prefill(0), "0");  // 600
  f.fleet.loads[0].outstanding_tokens = f.fleet.loads[1].outstanding_tokens = 501;
  EXPECT_EQ(f.prefill(1), "whole 2");
  f.fleet.loads[2].outstanding_tokens = 100;
  EXPECT_EQ(f.prefill(2), "whole 2");
  f.fleet.loads[2].outstanding_tokens = 501;
  EXPECT_EQ(f.prefill(3), "whole 3");
  f.fleet.loads[2] = {0, 2, 0, 20, 100};  // its prompts are computed: a token machine again
  EXPECT_EQ(f.prefill(4), "whole 3");
}

TEST(Splitwise, EverybodyIsFullTheFewestPendingTokens) {
  AskedFleet f({1, 1}, "splitwise", "{prompt_max_pending_tokens: 600}");
  f.fleet.loads[0].outstanding_tokens = 800;
  f.fleet.loads[1].outstanding_tokens = 700;
  EXPECT_EQ(f.prefill(0), "whole 1");
  f.fleet.loads[1].outstanding_tokens = 900;
  EXPECT_EQ(f.prefill(1), "0");
}

TEST(Splitwise, AnIdlePromptMachineTakesAnyPrompt) {
  const FakeFleet fleet(1, 1);
  EXPECT_EQ(ask_prefill(*make_dispatcher("splitwise", "{prompt_max_pending_tokens: 600}"), fleet, 0, 700), "0");
}

// 100 prompt and 100 predicted output tokens are 20 blocks: memory must stay below the cap.
TEST(Splitwise, WithoutATokenMachineThePromptMachineDecodes) {
  AskedFleet f({2, 2}, "splitwise");
  f.fleet.predicted = 100;
  f.fleet.loads[2].used_blocks = 80;
  f.fleet.loads[3].used_blocks = 85;
  EXPECT_EQ(f.prefill(0), "whole 0");
  f.fleet.loads[1].outstanding_tokens = 50;
  EXPECT_EQ(f.prefill(1), "1");  // machine 0 is mixed now, and so comes after the prompt machines
  EXPECT_EQ(f.decode(1, 100, 1), "0");
  leave(*f.dispatcher, 0);
  EXPECT_EQ(f.prefill(2), "1");  // still mixed: it decodes request 1
  leave(*f.dispatcher, 1);
  leave(*f.dispatcher, 2);
  EXPECT_EQ(f.prefill(3), "whole 0");  // a prompt machine again
  f.fleet.loads[2].used_blocks = 79;
  EXPECT_EQ(f.prefill(4), "1");
  EXPECT_EQ(f.decode(4, 100, 1), "2");
}

// Machine 1 computes a preempted request again and was sent no prompt. A mixed machine would take the new one before any token machine.
TEST(Splitwise, RecomputationLeavesATokenMachineInItsPool) {
  AskedFleet f({1, 2}, "splitwise", "{prompt_max_pending_tokens: 600}");
  f.fleet.loads[0].outstanding_tokens = 550;
  f.fleet.loads[1].outstanding_tokens = 100;
  EXPECT_EQ(f.prefill(0), "whole 2");
}

// 100 prompt and 300 predicted output tokens are 40 blocks, which a token machine is bound to keep from the arrival until the request
// leaves, after one token or all.
TEST(Splitwise, ReservesFullLengthsUntilRequestsLeave) {
  AskedFleet f({1, 2}, "splitwise");
  f.fleet.predicted = 300;
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(f.prefill(i), "0");
    EXPECT_EQ(f.decode(i), i % 2 == 0 ? "1" : "2");
  }
  EXPECT_EQ(f.prefill(4), "whole 0");
  leave(*f.dispatcher, 3);
  EXPECT_EQ(f.prefill(5), "0");
  EXPECT_EQ(f.decode(5), "2");
  EXPECT_EQ(ask_prefill(*make_dispatcher("splitwise", "{token_memory_cap_frac: 0.3}"), f.fleet, 0), "whole 0");
}

}  // namespace
}  // namespace kvlab
