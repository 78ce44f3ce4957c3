#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/policies/fake_fleet.h"

namespace kvlab {
namespace {

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

}  // namespace
}  // namespace kvlab
