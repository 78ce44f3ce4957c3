// Experts of a group of ranks: the tokens of all ranks, and the bytes that cross between them, by hand.
#include "sim/cost/expert_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/model/moe_experts/moe_experts.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

// 4 experts of 32 channels, 2 of them per token; a token has 16 x 2 bytes.
std::string moe_experiment(const TempFolder& folder, const std::string& parallel) {
  const std::string model = folder.write("moe.yaml", std::string(kTinyModel) +
                                                         "model_type: mixtral\nmax_position_embeddings: 1024\ntie_word_embeddings: false\n"
                                                         "num_local_experts: 4\nnum_experts_per_tok: 2\n");
  std::string text = "model: " + model + "\nhardware: " + folder.write("card.yaml", kTinyCard) + "\n";
  return parallel.empty() ? text : text + "parallel: " + parallel + "\n";
}

GroupTokens group_of(const std::vector<std::int64_t>& computed) {
  GroupTokens group;
  for (const std::int64_t tokens : computed) group.add(tokens, tokens);
  return group;
}

std::int64_t volume(const CostSetup& setup, const std::vector<std::int64_t>& computed) {
  return exchange_volume(setup.model, setup.parallel, group_of(computed)).bytes;
}

TEST(ExpertExchange, EveryRankReceivesTheTokensOfTheOthers) {
  const TempFolder folder;
  const CostSetup four = setup_of(moe_experiment(folder, "{dp: 4, ep: 4}"));
  EXPECT_EQ(volume(four, {8, 8, 8, 8}), 3 * 8 * 32);
  EXPECT_EQ(volume(four, {100, 1, 1, 1}), 102 * 32) << "without padding: all but the own token";
  const CostSetup cut = setup_of(moe_experiment(folder, "{tp: 2, dp: 2}"));
  EXPECT_EQ(volume(cut, {8, 8}), 8 * 32) << "experts that are cut need all tokens, too";
  EXPECT_EQ(exchange_volume(cut.model, cut.parallel, group_of({8, 8})).ranks, 2);
}

TEST(ExpertExchange, ATokenCrossesOnceToEachGpuThatHasOneOfItsExperts) {
  const TempFolder folder;
  const CostSetup four = setup_of(moe_experiment(folder, "{dp: 4, ep: 4, all_to_all: deepep}"));
  EXPECT_DOUBLE_EQ(share_of_gpus(four.model, 4), 0.5);  // one expert of four: 1 - 3/4 x 2/3
  EXPECT_EQ(volume(four, {8, 2, 2, 2}), 8 * 32 * 3 / 2);
  EXPECT_EQ(exchange_volume(four.model, four.parallel, group_of({8, 2, 2, 2})).ranks, 4);
  const CostSetup shared = setup_of(moe_experiment(folder, "{tp: 2, dp: 2, ep: 4, all_to_all: deepep}"));
  EXPECT_EQ(volume(shared, {8, 2}), 4 * 32 * 3 / 2) << "two GPUs share the rank's tokens";
  // Two experts of four on each GPU: 1 - 2/4 x 1/3 of the tokens cross, and not 2 x 1/2, once for each expert.
  const CostSetup two = setup_of(moe_experiment(folder, "{dp: 2, ep: 2, all_to_all: deepep}"));
  EXPECT_EQ(volume(two, {6, 6}), 6 * 32 * 5 / 6);
}

// A rank of so many decode rows of 9 cached tokens, in a group whose ranks compute so many tokens.
StepCost rank_cost(CostModel& cost, std::int32_t rows, const std::vector<std::int64_t>& computed) {
  StepShape shape = decode_shape(rows, rows * 9);
  const GroupTokens group = group_of(computed);
  if (!computed.empty()) shape.group = &group;
  return cost.step(shape);
}

std::int64_t part(const StepCost& cost, CostPart which) { return cost.part[static_cast<std::size_t>(which)].count(); }

// 1e10 bytes/s and 1 us for each rank to wait for; two layers, before and after the experts.
TEST(ExpertExchange, IsPricedOverTheLink) {
  const TempFolder folder;
  const auto collective = [&](const std::string& parallel, const std::vector<std::int64_t>& computed) {
    return part(rank_cost(*make_cost_model(setup_of(moe_experiment(folder, parallel))), 8, computed), CostPart::kCollective);
  };
  EXPECT_EQ(collective("{dp: 2, ep: 2}", {8, 8}), 2 * 2 * (8 * 32 * 100 + 1'000'000));
  EXPECT_EQ(collective("{dp: 2}", {8, 8}), 2 * 2 * (8 * 32 * 100 + 1'000'000));
  EXPECT_EQ(collective("{dp: 2, ep: 2, all_to_all: deepep}", {8, 8}), 2 * 2 * (8 * 32 * 5 / 6 * 100 + 1'000'000));
}

// 1 TB/s: a byte is a picosecond.
TEST(GroupExperts, ComputeTheTokensOfAllRanks) {
  const TempFolder folder;
  const auto linear = [&](const std::string& parallel, const std::vector<std::int64_t>& computed) {
    return part(rank_cost(*make_cost_model(setup_of(moe_experiment(folder, parallel))), 8, computed), CostPart::kLinear);
  };
  const auto shape = [](std::int64_t tokens, std::int64_t width, std::int64_t ranks) {
    return bytes(MoeExpertsShape{tokens, 16, width, 4, 2, ranks, 2, 16, true});
  };
  EXPECT_EQ(linear("{dp: 2, ep: 2}", {8, 24}) - linear("{dp: 2, ep: 2}", {8, 8}), 2 * (shape(32, 32, 2) - shape(16, 32, 2)));
  EXPECT_EQ(linear("{dp: 2}", {8, 24}) - linear("{dp: 2}", {8, 8}), 2 * (shape(32, 16, 1) - shape(16, 16, 1))) << "cut over both ranks";
  EXPECT_EQ(linear("{dp: 2, ep: 2}", {8, 8}), linear("", {}) - 2 * (shape(8, 32, 1) - shape(16, 32, 2)));
}

// A shape without a group: the others run a dummy each.
TEST(GroupExperts, OtherRanksAreIdleUnlessAStepSaysOtherwise) {
  const TempFolder folder;
  const auto cost = make_cost_model(setup_of(moe_experiment(folder, "{dp: 4, ep: 4}")));
  GroupTokens group;
  group.add(8, 8);
  for (int i = 0; i < 3; ++i) group.add(0, 1);
  StepShape with = decode_shape(8, 72);
  with.group = &group;
  EXPECT_EQ(cost->step(with).total, cost->step(decode_shape(8, 72)).total);
  EXPECT_EQ(cost->step(with).flops, cost->step(decode_shape(8, 72)).flops);
}

// Useful work of a group: that of its tokens on one GPU, but for the dense layers' weights, which each rank reads.
TEST(GroupExperts, WorkIsSharedByTheRanks) {
  const TempFolder folder;
  const auto group = make_cost_model(setup_of(moe_experiment(folder, "{dp: 2, ep: 2}"))),
             alone = make_cost_model(setup_of(moe_experiment(folder, "")));
  EXPECT_EQ(2 * rank_cost(*group, 8, {8, 8}).flops, alone->step(decode_shape(16, 144)).flops);
  EXPECT_EQ(group->peak_flops(), alone->peak_flops()) << "of a rank";
}

TEST(GroupMemory, IsPerRank) {
  const TempFolder folder;
  const CostSetup group = setup_of(moe_experiment(folder, "{dp: 2, ep: 2}")), alone = setup_of(moe_experiment(folder, "")),
                  shared = setup_of(moe_experiment(folder, "{ep: 2}"));
  const auto blocks = [](const CostSetup& setup) { return derive_num_blocks(setup, 0.9, 0, 16); };
  EXPECT_EQ(group.parallel.gpus(), 2);
  EXPECT_EQ(2 * blocks(group), blocks(shared)) << "one scheduler has the blocks of both GPUs";
  // Half of the experts' weights, 2 layers x 2 experts x 3 x 16 x 32 x 2 bytes, is on the other GPU; a block has 16 x 2 x 2 x 2 x 4 x 2
  // bytes.
  EXPECT_NEAR(static_cast<double>(blocks(group) - blocks(alone)), 2.0 * 2 * 3 * 16 * 32 * 2 / (16 * 2 * 2 * 2 * 4 * 2), 1);
}

TEST(ParallelKeys, AreChecked) {
  const TempFolder folder;
  const auto error = [&](const std::string& parallel) { return error_of([&] { setup_of(moe_experiment(folder, parallel)); }); };
  EXPECT_THAT(error("{tp: 2, dp: 2, ep: 2}"), ::testing::HasSubstr("'ep' = 2 is neither 1 nor tp x dp = 2 x 2 = 4"));
  EXPECT_THAT(error("{dp: 2, gpus: 3}"), ::testing::HasSubstr("'gpus' = 3, but tp = 1, pp = 1, dp = 2 and ep = 1 make a replica of 2"));
  EXPECT_THAT(error("{ep: 2, all_to_all: deepep}"), ::testing::HasSubstr("it needs dp > 1 and ep = tp x dp"));
  EXPECT_THAT(error("{dp: 8, ep: 8}"), ::testing::HasSubstr("'ep' = 8 does not divide the 4 experts"));
  for (const char* good : {"{tp: 2, dp: 2, ep: 4, gpus: 4}", "{ep: 2, gpus: 2}", "{dp: 3}", "{pp: 2, dp: 2, gpus: 4}"})
    EXPECT_EQ(error(good), "no error") << good;
}

}  // namespace
}  // namespace kvlab
