#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/policies/fake_fleet.h"

namespace kvlab {
namespace {

void set_node_load(FakeFleet& fleet, const std::vector<std::size_t>& nodes, std::int64_t prompt_tokens, std::int64_t used_blocks) {
  for (const std::size_t i : nodes) fleet.loads[i] = {0, 1, prompt_tokens, used_blocks, 100};
}

TEST(FlowKv, BalancesByLoad) {
  FakeFleet fleet(2, 2);
  const auto dispatcher = make_dispatcher("flowkv");
  fleet.loads[0].outstanding_tokens = 200;  // 20 of 100 blocks and 200 / 2048: 0.298
  fleet.loads[1].used_blocks = 29;
  fleet.queued[1] = 100;  // not looked at
  EXPECT_EQ(ask_prefill(*dispatcher, fleet, 0), "1");
  fleet.loads[1].used_blocks = 30;
  EXPECT_EQ(ask_prefill(*dispatcher, fleet, 1), "0");
  fleet.loads[2].used_blocks = fleet.queued[2] = 30;  // 0.6
  fleet.loads[3].used_blocks = 50;
  EXPECT_EQ(ask_decode(*dispatcher, fleet, 0), "3");
}

// The prefill nodes have a load of 6.1 (410 blocks of 100 and two steps), the decode nodes count as 0.5.
TEST(FlowKv, IdleDecodeNodesTakePrompts) {
  FakeFleet fleet(2, 2);
  FakeControl control;
  const auto dispatcher = make_dispatcher("flowkv");
  set_node_load(fleet, {0, 1}, 4096, 0);
  set_node_load(fleet, {2, 3}, 0, 10);
  EXPECT_EQ(ask_prefill(*dispatcher, fleet, 0), "0");  // the controller has not looked yet
  dispatcher->on_timer(fleet, control);
  EXPECT_EQ(ask_prefill(*dispatcher, fleet, 1), "whole 2");
  EXPECT_EQ(ask_decode(*dispatcher, fleet, 0), "2");
  set_node_load(fleet, {2, 3}, 0, 25);  // not idle
  EXPECT_EQ(ask_prefill(*dispatcher, fleet, 2), "0");
  set_node_load(fleet, {0, 1}, 670, 0);  // 0.997, less than twice 0.5
  set_node_load(fleet, {2, 3}, 0, 10);
  dispatcher->on_timer(fleet, control);
  EXPECT_EQ(ask_prefill(*dispatcher, fleet, 3), "0");
  EXPECT_TRUE(control.changes.empty());
}

TEST(FlowKv, IdlePrefillNodesDecode) {
  FakeFleet fleet(2, 2);
  FakeControl control;
  const auto dispatcher = make_dispatcher("flowkv");
  set_node_load(fleet, {2, 3}, 0, 100);
  fleet.queued[2] = fleet.queued[3] = 50;
  set_node_load(fleet, {0}, 0, 20);
  set_node_load(fleet, {1}, 0, 5);
  dispatcher->on_timer(fleet, control);
  EXPECT_EQ(ask_decode(*dispatcher, fleet, 0), "1");
  EXPECT_EQ(ask_prefill(*dispatcher, fleet, 1), "1");
  set_node_load(fleet, {0, 1}, 170, 0);  // 0.253
  EXPECT_EQ(ask_decode(*dispatcher, fleet, 2), "2");
}

// Ratio 18.3 / 0.5 against 4, three periods in a row.
TEST(FlowKv, ANodeFlipsInExtremeLoad) {
  FakeFleet fleet(2, 2);
  FakeControl control;
  const auto dispatcher = make_dispatcher("flowkv");
  const auto look = [&](std::int64_t prompt_tokens) {
    set_node_load(fleet, {0, 1}, prompt_tokens, 0);
    dispatcher->on_timer(fleet, control);
  };
  set_node_load(fleet, {2}, 0, 20);
  set_node_load(fleet, {3}, 0, 10);
  for (const std::int64_t tokens : {12288, 12288, 0, 12288, 12288}) look(tokens);
  EXPECT_TRUE(control.changes.empty());
  look(12288);
  EXPECT_EQ(control.changes, (std::vector<std::string>{"3:prefill"}));
  EXPECT_EQ(ask_prefill(*dispatcher, fleet, 0), "whole 2");  // node 3 is drained
  for (int i = 0; i < 5; ++i) look(12288);
  fleet.stages[3] = {true, false};
  for (int i = 0; i < 5; ++i) look(12288);
  EXPECT_EQ(control.changes.size(), 1U);  // node 2 is the last one that decodes
}

TEST(FlowKv, TheOtherStageBeginsANewCount) {
  FakeFleet fleet(2, 2);
  FakeControl control;
  const auto dispatcher = make_dispatcher("flowkv", "{least_load: 0.1}");
  const auto look = [&](bool prefill_is_heavier) {
    set_node_load(fleet, {0, 1}, prefill_is_heavier ? 4096 : 0, 0);
    set_node_load(fleet, {2, 3}, 0, prefill_is_heavier ? 0 : 100);
    dispatcher->on_timer(fleet, control);
  };
  for (const bool prefill : {true, true, false, false}) look(prefill);
  EXPECT_TRUE(control.changes.empty());
  look(false);
  EXPECT_EQ(control.changes, (std::vector<std::string>{"0:decode"}));
}

TEST(FlowKv, NodesKeepTheirRolesWithoutFlip) {
  FakeFleet fleet(2, 2);
  FakeControl control;
  const auto dispatcher = make_dispatcher("flowkv", "{flip: false}");
  EXPECT_TRUE(dispatcher->changes_roles());  // they still serve both stages
  set_node_load(fleet, {0, 1}, 100'000, 0);
  for (int i = 0; i < 10; ++i) dispatcher->on_timer(fleet, control);
  EXPECT_TRUE(control.changes.empty());
  EXPECT_EQ(ask_prefill(*dispatcher, fleet, 0), "whole 2");
}

TEST(FlowKv, ExtremeIsMoreThanUnbalanced) {
  EXPECT_THAT(error_of([] { make_dispatcher("flowkv", "{imbalance_ratio: 3, extreme_ratio: 2}"); }),
              HasSubstr("less than 'imbalance_ratio'"));
}

}  // namespace
}  // namespace kvlab
