#include "tests/policies/fake_fleet.h"

namespace kvlab {
namespace {

using namespace std::chrono_literals;

TEST(TetriInfer, PromptsGoToTheFewestPromptTokens) {
  FakeFleet fleet(2, 1);
  fleet.loads[0] = {1, 0, 300, 0, 100};
  fleet.loads[1] = {2, 1, 200, 0, 100};
  EXPECT_EQ(ask_prefill(*make_dispatcher("tetriinfer"), fleet, 0), "1");
}

// 100 prompt and 500 predicted output tokens are 60 blocks.
TEST(TetriInfer, PrefersInstancesWithRoomForThePredictedLength) {
  FakeFleet fleet(1, 2);
  fleet.predicted = 500;
  fleet.loads[1] = {0, 1, 0, 50, 100};
  fleet.loads[2] = {0, 1, 0, 35, 100};
  fleet.queued[2] = 5;
  const auto dispatcher = make_dispatcher("tetriinfer");
  for (fleet.asked = 0; fleet.asked < 20; ++fleet.asked) {
    EXPECT_EQ(ask_decode(*dispatcher, fleet, fleet.asked), "2");
    leave(*dispatcher, fleet.asked);
  }
  fleet.queued[2] = 55;  // neither has room for all of it; instance 1 has for the prompt
  EXPECT_EQ(ask_decode(*dispatcher, fleet, 0), "1");
}

TEST(TetriInfer, AvoidsHeavyDecodes) {
  FakeFleet fleet(1, 2);
  const auto dispatcher = make_dispatcher("tetriinfer");
  const auto only = [&](std::uint32_t instance) {
    FakeFleet full = fleet;
    full.loads[3 - instance] = {0, 1, 0, 100, 100};
    return full;
  };
  fleet.predicted = 129;
  ASSERT_EQ(ask_decode(*dispatcher, only(1), 1), "1");
  fleet.predicted = 128;  // light
  ASSERT_EQ(ask_decode(*dispatcher, only(2), 2), "2");
  ASSERT_EQ(ask_decode(*dispatcher, only(2), 3), "2");
  EXPECT_EQ(ask_decode(*dispatcher, fleet, 4), "2");  // 1:0 against 0:2
  leave(*dispatcher, 1);
  EXPECT_EQ(ask_decode(*dispatcher, fleet, 5), "1");  // 0:0 against 0:3
}

// With 0:0, 0:1 and 1:0 decodes the first wins two of three pairs and the second one of three: 3000 draws, 4 sigma = 103.
TEST(TetriInfer, DrawsTwoOfSeveral) {
  FakeFleet fleet(1, 3);
  const auto dispatcher = make_dispatcher("tetriinfer");
  for (const auto& [instance, output_tokens] : {std::pair{2U, 10}, std::pair{3U, 1000}}) {
    FakeFleet full = fleet;
    for (const std::uint32_t other : {1U, 2U, 3U})
      if (other != instance) full.loads[other] = {0, 1, 0, 100, 100};
    full.predicted = output_tokens;
    ASSERT_EQ(ask_decode(*dispatcher, full, 10'000 + instance), std::to_string(instance));
  }
  std::map<std::string, int> count;
  for (fleet.asked = 0; fleet.asked < 3000; ++fleet.asked) {
    ++count[ask_decode(*dispatcher, fleet, fleet.asked)];
    leave(*dispatcher, fleet.asked);
  }
  EXPECT_NEAR(count["1"], 2000, 103);
  EXPECT_NEAR(count["2"], 1000, 103);
  EXPECT_EQ(count["3"], 0);
  EXPECT_TRUE(dispatcher->is_random());
}

// ---- admission: 20 blocks are free, the request takes 11 now ----

struct TetriAdmission {
  FakeFleet fleet{1, 1};
  std::unique_ptr<Dispatcher> dispatcher;

  explicit TetriAdmission(const std::string& rule) : dispatcher(make_dispatcher("tetriinfer", "{admission: " + rule + "}")) {
    fleet.loads[1] = {0, 1, 0, 80, 100};
  }
  void run(std::uint64_t number, std::int32_t prompt_tokens, std::int32_t predicted) {
    fleet.predicted = predicted;
    ask_prefill(*dispatcher, fleet, number);
    fleet.queues[1].run(number, prompt_tokens, 1);
  }
  std::string ask(std::int32_t predicted) {
    fleet.predicted = predicted;
    return ask_decode(*dispatcher, fleet, 0);
  }
};

TEST(TetriInfer, GreedyLooksAtTheRequestNow) {
  TetriAdmission a("greedy");
  EXPECT_EQ(a.ask(1000), "1");
  a.fleet.loads[1].used_blocks = 90;
  EXPECT_EQ(a.ask(1), "hold");
}

TEST(TetriInfer, ReserveStaticLooksAtTheFullLength) {
  EXPECT_EQ(TetriAdmission("reserve_static").ask(100), "1");  // 200 tokens: 20 blocks
  EXPECT_EQ(TetriAdmission("reserve_static").ask(101), "hold");
}

// Request 5 holds 2 blocks and ends in 100 steps with 12; the new one holds 21 then, and request 6 has taken 10 more. Growth until then:
// 21 - 2 = 19, and 29 with request 6.
TEST(TetriInfer, ReserveDynamicLooksAtTheFirstEnd) {
  TetriAdmission a("reserve_dynamic");
  a.run(5, 10, 101);
  EXPECT_EQ(a.ask(1000), "1");
  a.run(6, 199, 1000);
  EXPECT_EQ(a.ask(1000), "hold");
  a.fleet.loads[1].used_blocks = 71;
  EXPECT_EQ(a.ask(1000), "1");
}

// 11 blocks now do not fit, whatever is free later.
TEST(TetriInfer, ReserveDynamicNeedsRoomNowAsWell) {
  TetriAdmission a("reserve_dynamic");
  a.run(5, 700, 2);
  a.fleet.loads[1].used_blocks = 90;
  EXPECT_EQ(a.ask(1), "hold");
}

TEST(TetriInfer, NeverHoldsForAnIdleInstance) {
  for (const char* rule : {"greedy", "reserve_static", "reserve_dynamic"}) {
    TetriAdmission a(rule);
    a.fleet.loads[1] = {0, 0, 0, 95, 100};
    EXPECT_EQ(a.ask(1000), "1") << rule;
  }
}

// ---- roles ----

struct TetriFlips : AskedFleet {
  TetriFlips(std::size_t prefill, std::size_t decode) : AskedFleet({prefill, decode}, "tetriinfer", "{flip_idle_s: 10}") {}
};

TEST(TetriInfer, AnIdleInstanceFlipsWhereOthersWait) {
  TetriFlips f(2, 2);
  f.fleet.loads[0].waiting = 2;
  f.fleet.loads[1].running = 1;
  f.fleet.loads[2].running = 1;
  f.look(1s);
  f.look(11s - 1ns);
  EXPECT_TRUE(f.control.changes.empty());
  f.look(11s);
  EXPECT_EQ(f.control.changes, (std::vector<std::string>{"3:prefill"}));
  f.fleet.loads[2].running = 0;
  f.look(30s);  // instance 3 is still drained
  f.fleet.stages[3] = {true, false};
  f.look(60s);  // instance 2 is the last one that decodes
  EXPECT_EQ(f.control.changes.size(), 1U);
}

TEST(TetriInfer, NobodyFlipsWhileNobodyWaits) {
  TetriFlips f(2, 2);
  f.fleet.loads[0].running = 1;
  f.look(0s);
  f.look(100s);
  EXPECT_TRUE(f.control.changes.empty());
}

TEST(TetriInfer, ARequestBetweenTwoLooksBreaksTheIdleTime) {
  TetriFlips f(1, 2);
  f.fleet.loads[0].waiting = 1;
  f.fleet.loads[1].running = 1;
  f.look(0s);
  FakeFleet full = f.fleet;
  full.loads[1].used_blocks = 100;
  ASSERT_EQ(ask_decode(*f.dispatcher, full, 0), "2");
  f.look(10s);
  f.look(20s - 1ns);
  EXPECT_TRUE(f.control.changes.empty());
  f.look(20s);
  EXPECT_EQ(f.control.changes, (std::vector<std::string>{"2:prefill"}));
}

// Requests that are held wait for a decode instance, and are in no queue.
TEST(TetriInfer, HeldRequestsTurnAnIdlePrefillInstance) {
  for (const bool is_taken : {false, true}) {
    TetriFlips f(2, 1);
    f.fleet.loads[2] = {0, 1, 0, 100, 100};
    ASSERT_EQ(ask_decode(*f.dispatcher, f.fleet, 0), "hold");
    f.look(0s);
    f.fleet.loads[2].used_blocks = is_taken ? 0 : 100;
    if (is_taken) {
      ASSERT_EQ(ask_decode(*f.dispatcher, f.fleet, 0), "2");
    }
    f.look(10s);
    EXPECT_EQ(f.control.changes, is_taken ? std::vector<std::string>{} : std::vector<std::string>{"0:decode"});
  }
}

TEST(TetriInfer, RolesChangeOnlyIfAskedFor) {
  EXPECT_TRUE(make_dispatcher("tetriinfer")->changes_roles());
  EXPECT_EQ(make_dispatcher("tetriinfer")->period(), Span(1s));
  const auto fixed = make_dispatcher("tetriinfer", "{flip: false}");
  EXPECT_FALSE(fixed->changes_roles());
  EXPECT_EQ(fixed->period(), Span{0});
}

}  // namespace
}  // namespace kvlab
