// Experts of a group of ranks: the tokens of all ranks, and the bytes that cross between them, by hand.
#include <cmath>

#include "kernels/model/layer/layer.h"
#include "sim/cost/collectives.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

// A token has 16 x 2 bytes.
CostSetup moe_setup(const std::string& parallel, const std::string& collectives = "") {
  return roofline_setup(parallel.empty() ? "" : "parallel: " + parallel + "\n", kTinyMoe, kTinyCard + collectives);
}

GroupTokens group_of(const std::vector<std::int64_t>& computed) {
  GroupTokens group;
  for (const std::int64_t tokens : computed) group.add(tokens, tokens);
  return group;
}

std::int64_t volume(const CostSetup& setup, const std::vector<std::int64_t>& computed) {
  return exchange_volume(setup.model, setup.parallel, group_of(computed));
}

TEST(ExpertExchange, EveryRankReceivesTheTokensOfTheOthers) {
  const CostSetup four = moe_setup("{dp: 4, ep: 4}");
  EXPECT_EQ(volume(four, {8, 8, 8, 8}), 3 * 8 * 32);
  EXPECT_EQ(volume(four, {100, 1, 1, 1}), 102 * 32) << "without padding: all but the own token";
  const CostSetup cut = moe_setup("{tp: 2, dp: 2}");
  EXPECT_EQ(volume(cut, {8, 8}), 8 * 32) << "experts that are cut need all tokens, too";
  EXPECT_EQ(exchange_collectives(cut.parallel).front().ranks, 2);
}

TEST(ExpertExchange, ATokenCrossesOnceToEachGpuThatHasOneOfItsExperts) {
  const CostSetup four = moe_setup("{dp: 4, ep: 4, all_to_all: deepep}");
  EXPECT_DOUBLE_EQ(share_of_gpus(four.model, 4), 0.5);  // one expert of four: 1 - 3/4 x 2/3
  EXPECT_EQ(volume(four, {8, 2, 2, 2}), 8 * 32 * 3 / 2);
  EXPECT_EQ(exchange_collectives(four.parallel).front().ranks, 4);
  const CostSetup shared = moe_setup("{tp: 2, dp: 2, ep: 4, all_to_all: deepep}");
  EXPECT_EQ(volume(shared, {8, 2}), 4 * 32 * 3 / 2) << "two GPUs share the rank's tokens";
  // Two experts of four on each GPU: 1 - 2/4 x 1/3 of the tokens cross, and not 2 x 1/2, once for each expert.
  const CostSetup two = moe_setup("{dp: 2, ep: 2, all_to_all: deepep}");
  EXPECT_EQ(volume(two, {6, 6}), 6 * 32 * 5 / 6);
}

// A rank with this number of decode rows of 9 cached tokens, in a group whose ranks compute these numbers of tokens.
StepCost rank_cost(CostModel& cost, std::int32_t rows, const std::vector<std::int64_t>& computed) {
  StepShape shape = decode_shape(rows, rows * 9);
  const GroupTokens group = group_of(computed);
  if (!computed.empty()) shape.group = &group;
  return cost.step(shape);
}

std::int64_t part(const StepCost& cost, CostPart which) { return cost.of(which).count(); }

// Two ranks over PCIe wait for each other twice, 1 us each, and reach 0.6 of 1e10 bytes/s; two layers, before and after the experts.
TEST(ExpertExchange, IsPricedOverTheLink) {
  const auto collective = [&](const std::string& parallel, const std::vector<std::int64_t>& computed) {
    const StepCost cost = rank_cost(*make_cost_model(moe_setup(parallel)), 8, computed);
    return static_cast<double>(part(cost, CostPart::kCollective));
  };
  const auto by_hand = [](double bytes) { return 2 * 2 * (2e6 + bytes / 0.6e10 * 1e12); };
  EXPECT_NEAR(collective("{dp: 2, ep: 2}", {8, 8}), by_hand(8 * 32), 2);
  EXPECT_NEAR(collective("{dp: 2}", {8, 8}), by_hand(8 * 32), 2);
  EXPECT_NEAR(collective("{dp: 2, ep: 2}", {24, 8}), by_hand(24 * 32), 2) << "what the smaller rank receives";
  EXPECT_NEAR(collective("{dp: 2, ep: 2, all_to_all: deepep}", {8, 8}), by_hand(std::round(8 * 32 * 5 / 6.0)), 2);
}

// 8 tokens of each of two ranks: messages of 512 bytes. Two layers.
TEST(ExpertExchange, IsPricedByMeasuredTables) {
  const std::string tables =
      "collectives: {source: a test, tables: [{op: all_gather, ranks: 2, points: [[512, 3000], [1024, 4000]]}, "
      "{op: reduce_scatter, ranks: 2, points: [[512, 5000], [1024, 7000]]}]}\n";
  const CostSetup setup = moe_setup("{dp: 2, ep: 2}", tables);
  const StepCost cost = rank_cost(*make_cost_model(setup), 8, {8, 8});
  EXPECT_EQ(part(cost, CostPart::kCollective), 2 * (3'000'000 + 5'000'000));
  EXPECT_EQ(cost.of(Footing::kInside).count(), 2 * (3'000'000 + 5'000'000));
  EXPECT_EQ(part(rank_cost(*make_cost_model(setup), 8, {16, 16}), CostPart::kCollective), 2 * (4'000'000 + 7'000'000));
  const std::vector<CollectiveUse> uses = collectives_of(setup.model, setup.parallel);
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_THAT(setup.collectives->basis(uses[0]), HasSubstr("all_gather over 2 ranks by the table, "));
  EXPECT_THAT(setup.collectives->basis(uses[1]), HasSubstr("reduce_scatter over 2 ranks by the table, "));
  EXPECT_EQ(message_bytes(setup.model, setup.parallel, Collective::kAllGather, 8), 512);
  EXPECT_EQ(cost.of(Footing::kDatasheet).count(), 0);
  const CostSetup deepep = moe_setup("{dp: 2, ep: 2, all_to_all: deepep}", tables);
  ASSERT_EQ(collectives_of(deepep.model, deepep.parallel).size(), 1U);
  const StepCost by_links = rank_cost(*make_cost_model(deepep), 8, {8, 8});
  EXPECT_GT(part(by_links, CostPart::kCollective), 0);
  EXPECT_EQ(by_links.of(Footing::kDatasheet), by_links.of(CostPart::kCollective)) << "there is no table of all_to_all";
}

// 1 TB/s: a byte is a picosecond.
TEST(GroupExperts, ComputeTheTokensOfAllRanks) {
  const auto experts = [&](const std::string& parallel, const std::vector<std::int64_t>& computed) {
    return part(rank_cost(*make_cost_model(moe_setup(parallel)), 8, computed), CostPart::kExperts);
  };
  const auto shape = [](std::int64_t tokens, std::int64_t width, std::int64_t ranks) {
    return bytes(MoeExpertsShape{tokens, 16, width, 4, 2, ranks, 2, 16, true});
  };
  EXPECT_EQ(experts("{dp: 2, ep: 2}", {8, 24}) - experts("{dp: 2, ep: 2}", {8, 8}), 2 * (shape(32, 32, 2) - shape(16, 32, 2)));
  EXPECT_EQ(experts("{dp: 2}", {8, 24}) - experts("{dp: 2}", {8, 8}), 2 * (shape(32, 16, 1) - shape(16, 16, 1))) << "cut over both ranks";
  EXPECT_EQ(experts("{dp: 2, ep: 2}", {8, 8}), experts("", {}) - 2 * (shape(8, 32, 1) - shape(16, 32, 2)));
}

TEST(GroupExperts, AreOfTheLayersThatHaveThem) {
  const auto moe = [&](const std::string& more) {
    const std::string model = std::string(kTinyModel) +
                              "model_type: qwen3_moe\nmax_position_embeddings: 1024\ntie_word_embeddings: false\n"
                              "num_experts: 4\nnum_experts_per_tok: 2\nmoe_intermediate_size: 32\n";
    return make_cost_model(roofline_setup("parallel: {dp: 2, ep: 2}\n", model + more));
  };
  const auto both = moe(""), one = moe("mlp_only_layers: [0]\n");
  const auto of = [](CostModel& cost, std::int64_t tokens) { return rank_cost(cost, 8, {8, tokens}); };
  EXPECT_EQ(part(of(*both, 8), CostPart::kCollective), 2 * part(of(*one, 8), CostPart::kCollective));
  const auto more = [&](CostModel& cost) { return part(of(cost, 24), CostPart::kExperts) - part(of(cost, 8), CostPart::kExperts); };
  EXPECT_GT(more(*one), 0);
  EXPECT_EQ(more(*both), 2 * more(*one));
}

// A shape without a group: the others run a dummy each.
TEST(GroupExperts, OtherRanksAreIdleUnlessAStepSaysOtherwise) {
  const auto cost = make_cost_model(moe_setup("{dp: 4, ep: 4}"));
  GroupTokens group;
  group.add(8, 8);
  for (int i = 0; i < 3; ++i) group.add(0, 1);
  StepShape with = decode_shape(8, 72);
  with.group = &group;
  const StepCost told = cost->step(with), untold = cost->step(decode_shape(8, 72));
  EXPECT_EQ(std::pair(told.total, told.flops), std::pair(untold.total, untold.flops));
}

// Useful work of a group: that of its tokens on one GPU, but for the dense layers' weights, which each rank reads.
TEST(GroupExperts, WorkIsSharedByTheRanks) {
  const auto group = make_cost_model(moe_setup("{dp: 2, ep: 2}")), alone = make_cost_model(moe_setup(""));
  EXPECT_EQ(2 * rank_cost(*group, 8, {8, 8}).flops, alone->step(decode_shape(16, 144)).flops);
  EXPECT_EQ(group->peak_flops(), alone->peak_flops()) << "of a rank";
}

TEST(GroupMemory, IsPerRank) {
  const CostSetup group = moe_setup("{dp: 2, ep: 2}"), alone = moe_setup(""), shared = moe_setup("{ep: 2}");
  const auto blocks = [](const CostSetup& setup) { return derive_num_blocks(setup, 0.9, 0, 16); };
  EXPECT_EQ(group.parallel.gpus(), 2);
  EXPECT_EQ(2 * blocks(group), blocks(shared)) << "one scheduler has the blocks of both GPUs";
  // Half of the experts' weights, 2 layers x 2 experts x 3 x 16 x 32 x 2 bytes, is on the other GPU; a block has 16 x 2 x 2 x 2 x 4 x 2
  // bytes.
  EXPECT_NEAR(static_cast<double>(blocks(group) - blocks(alone)), 2.0 * 2 * 3 * 16 * 32 * 2 / (16 * 2 * 2 * 2 * 4 * 2), 1);
}

TEST(ParallelKeys, AreChecked) {
  const auto error = [&](const std::string& parallel) { return error_of([&] { moe_setup(parallel); }); };
  EXPECT_THAT(error("{tp: 2, dp: 2, ep: 2}"), HasSubstr("'ep' = 2 is neither 1 nor tp x dp = 2 x 2 = 4"));
  EXPECT_THAT(error("{dp: 2, gpus: 3}"), HasSubstr("'gpus' = 3, but tp = 1, pp = 1, dp = 2 and ep = 1 make a replica of 2"));
  EXPECT_THAT(error("{ep: 2, all_to_all: deepep}"), HasSubstr("it needs dp > 1 and ep = tp x dp"));
  EXPECT_THAT(error("{dp: 8, ep: 8}"), HasSubstr("'ep' = 8 does not divide the 4 experts"));
  for (const char* good : {"{tp: 2, dp: 2, ep: 4, gpus: 4}", "{ep: 2, gpus: 2}", "{dp: 3}", "{pp: 2, dp: 2, gpus: 4}"})
    EXPECT_EQ(error(good), "no error") << good;
}

}  // namespace
}  // namespace kvlab
