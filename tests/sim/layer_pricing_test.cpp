// Steps whose entries pass some of the layers, priced by hand.
#include <cmath>

#include "kernels/model/layer/layer.h"
#include "sim/cost/collectives.h"
#include "sim/pricing.h"
#include "tests/sim/cost_support.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

// A layer takes 1000 for its weights, 10 for each row, 3 for each decode row's cached token and 2 for each cached token of a prompt.
// Outside of the layers: 500, 4 for each row, 7 for each row of the head.
class LayeredCost final : public StubCost {
 public:
  explicit LayeredCost(int stages = 1) : stages_(stages) {}
  StepCost step(const StepShape& shape) override {
    const std::int64_t rows = shape.tokens() + shape.padding_rows;
    std::int64_t layer = rows == 0 ? 0 : 1000 + 10 * rows + 3 * shape.decode_kv_tokens;
    for (const PrefillPiece& piece : shape.prefills) layer += 2 * std::int64_t{piece.kv_before};
    StepCost cost;
    std::int64_t all = layer * (shape.layers == 0 ? kLayers : shape.layers);
    if (shape.layers == 0 && rows > 0) all += 500 + 4 * rows + 7 * std::int64_t{shape.head_rows};
    for (const PolicyOp& op : shape.ops) all += op.bytes;
    cost.add(CostPart::kLinear, Footing::kInside, Picoseconds{all});
    return cost;
  }
  void stage_times(const StepShape& shape, std::vector<Picoseconds>& times) override {
    times.assign(static_cast<std::size_t>(stages_), step(shape).total / stages_);
  }
  [[nodiscard]] int num_layers() const override { return kLayers; }
  [[nodiscard]] int num_stages() const override { return stages_; }

 private:
  static constexpr int kLayers = 48;
  int stages_;
};

StepEntry entry(std::int32_t tokens, std::int32_t kv_before, std::int32_t layer_begin = 0, std::int32_t layer_end = 0) {
  StepEntry e{RequestId{0}, tokens};
  e.kv_before = kv_before;
  e.layer_begin = layer_begin;
  e.layer_end = layer_end;
  return e;
}

InFlightStep step_with(std::vector<StepEntry> entries) {
  InFlightStep step;
  step.entries = std::move(entries);
  return step;
}

struct Pricer {
  explicit Pricer(int stages = 1) : cost(stages) {}
  LayeredCost cost;
  std::unique_ptr<Scheduler> scheduler = policy<SchedulerRegistry>("scheduler", "sarathi", "{}")();
  StepPricer pricer{cost, *scheduler};
  std::int64_t price(const InFlightStep& step) { return pricer.price(step).total.count(); }
};

struct LayerPricing : ::testing::Test {
  Pricer p;
};

// Two decode rows over 50 and 70 tokens pass all 48 layers, a cohort of 100 tokens over 20 those from 12 to 23. In these 12 layers the
// weights are read once for 102 rows. The decodes alone end in this step.
TEST_F(LayerPricing, AMixedStepSharesTheWeightsOfTheCohortsLayers) {
  InFlightStep step = step_with({entry(1, 50), entry(1, 70), entry(100, 20, 12, 24)});
  const std::int64_t shared = 1000 + 10 * 102 + 3 * 120 + 2 * 20, decodes = 1000 + 10 * 2 + 3 * 120;
  EXPECT_EQ(p.price(step), 12 * shared + 36 * decodes + 500 + 4 * 2 + 7 * 2);
  EXPECT_EQ(p.pricer.shape().prefills.size(), 1U);  // host time is that of all rows
  EXPECT_EQ(p.pricer.shape().decodes, 2);
  EXPECT_EQ(p.price(step_with({step.entries[0], step.entries[1]})), 48 * decodes + 500 + 4 * 2 + 7 * 2);
  EXPECT_EQ(p.price(step_with({step.entries[2]})),
            12 * (1000 + 10 * 100 + 2 * 20) + 500 + 4);  // none ends: one row of padding outside the layers
}

// The last group of the cohort: its rows go through the embedding and the norm, once, and one row of it through the head.
TEST_F(LayerPricing, TheLastGroupPaysForTheHead) {
  const std::int64_t shared = 1000 + 10 * 101 + 3 * 50 + 2 * 20, decode = 1000 + 10 + 3 * 50;
  EXPECT_EQ(p.price(step_with({entry(1, 50), entry(100, 20, 36, 0)})), 12 * shared + 36 * decode + 500 + 4 * 101 + 7 * 2);
}

// Over its four groups a cohort passes each layer once: with decodes of the same length in each step, the sum is that of four decode
// steps and what the prompt's rows add.
TEST_F(LayerPricing, ACohortPassesEveryLayerOnceInAll) {
  std::int64_t sum = 0;
  for (int g = 0; g < 4; ++g) sum += p.price(step_with({entry(1, 50), entry(100, 0, 12 * g, g == 3 ? 0 : 12 * (g + 1))}));
  EXPECT_EQ(sum, 4 * p.price(step_with({entry(1, 50)})) + 48 * 10 * 100 + 4 * 100 + 7);
}

// The rows of a set pass its layers, next to each other or not: 2 of 48 by both rows, 46 by one.
TEST_F(LayerPricing, RowsPassTheLayersOfTheirSets) {
  InFlightStep step = step_with({entry(1, 50), entry(1, 70)});
  step.layer_sets = {LayerSet{}.set(0).set(47)};
  step.entries[1].layer_set = 1;
  EXPECT_EQ(p.price(step), 2 * (1000 + 20 + 3 * 120) + 46 * (1000 + 10 + 3 * 50) + 500 + 4 * 2 + 7 * 2);
  step.entries[0].layer_set = 1;  // layers that no row passes are not read
  EXPECT_EQ(p.price(step), 2 * (1000 + 20 + 3 * 120) + 500 + 4 * 2 + 7 * 2);
}

// Rows of a finished member of a static batch pass the layers that others pass.
TEST_F(LayerPricing, IdleRowsPassNoLayerAlone) {
  InFlightStep step = step_with({entry(1, 50)});
  step.idle_rows = 3;
  step.layer_sets = {LayerSet{}.set(0).set(47)};
  step.entries[0].layer_set = 1;
  EXPECT_EQ(p.price(step), 2 * (1000 + 10 * 4 + 3 * 50) + 500 + 4 * 4 + 7 * 4);
}

// A recursive model of 3 loops over 16 layers: rows in loops 0, 1 and 2 read the weights of 16 layers once. The row that leaves after
// loop 1 and the one in the last loop have logits.
TEST_F(LayerPricing, LoopsOfARecursiveModelShareWeights) {
  InFlightStep step;
  step.loop_layers = 16;
  step.entries = {entry(1, 50, 0, 16), entry(1, 60, 16, 32), entry(1, 70, 32, 0), entry(40, 0, 0, 16)};
  step.entries[1].exits_early = true;
  EXPECT_EQ(p.price(step), 16 * (1000 + 10 * 43 + 3 * 180) + 500 + 4 * 2 + 7 * 2);
  step.entries[1].layer_end = 0;  // two loops in one step
  EXPECT_THROW(p.price(step), InternalError);
}

// A prompt of 100 tokens of which layers from 20 on compute 30, and those from 40 on 10, beside a decode row over 50: the weights of a
// layer are read once for all of its rows, embedding and head take the whole prompt.
TEST_F(LayerPricing, PrunedPromptsPassLaterLayersWithFewerRows) {
  InFlightStep step = step_with({entry(1, 50), entry(100, 0)});
  std::vector<std::int32_t> tokens(48, 100);
  std::fill(tokens.begin() + 20, tokens.begin() + 40, 30);
  std::fill(tokens.begin() + 40, tokens.end(), 10);
  step.policy.pruned = {{1, tokens}};
  step.policy.ops = {{"top_k", 1, 77, 0}};
  const auto layer = [](std::int64_t rows) { return 1000 + 10 * rows + 3 * 50; };
  EXPECT_EQ(p.price(step), 20 * layer(101) + 20 * layer(31) + 8 * layer(11) + 500 + 4 * 101 + 7 * 2 + 77);
  EXPECT_EQ(p.pricer.shape().prefills.front().new_tokens, 100);
  Pricer staged(2);
  EXPECT_EQ(error_of([&] { staged.price(step); }),
            "stages of a pipeline compute whole steps: a kv_policy with a prompt_pruner or prompt_rewriter needs 'parallel' without pp");
}

// A policy's pass of 200 tokens over 40 through five layers, without embedding and head, and one through the whole model.
TEST_F(LayerPricing, PassesOfAPolicyMayEndEarly) {
  InFlightStep step = step_with({entry(1, 50)});
  const std::int64_t without = p.price(step), layer = 1000 + 10 * 200 + 2 * 40;
  step.policy.passes = {{200, 40, 5}};
  EXPECT_EQ(p.price(step), without + 5 * layer);
  step.policy.passes = {{200, 40}};
  EXPECT_EQ(p.price(step), without + 48 * layer + 500 + 4 * 200);
}

TEST_F(LayerPricing, PassesOfAPolicyGoThroughTheStagesOfAPipeline) {
  Pricer staged(2);
  InFlightStep step = step_with({entry(1, 50)});
  step.policy.passes = {{200, 40}, {200, 40}};
  const std::int64_t whole = staged.price(step);
  std::vector<Picoseconds> times;
  staged.pricer.stage_times(times);
  ASSERT_EQ(times.size(), 2U);
  EXPECT_NEAR(static_cast<double>(times[0].count()), static_cast<double>(whole) / 2, 1);
  EXPECT_NEAR(static_cast<double>((times[0] + times[1]).count()), static_cast<double>(whole), 1);
}

TEST_F(LayerPricing, OperationsOfAPolicyCountOnce) {
  InFlightStep step = step_with({entry(1, 50), entry(100, 20, 12, 24)});
  const std::int64_t without = p.price(step);
  step.policy.ops = {{"compact_rows", 1, 12345, 0, false}};
  EXPECT_EQ(p.price(step), without + 12345);
}

TEST_F(LayerPricing, StagesOfAPipelineRefuseIt) {
  Pricer staged(2);
  EXPECT_THAT(error_of([&] { staged.price(step_with({entry(100, 20, 12, 24)})); }), HasSubstr("'parallel' without pp"));
}

// Card 1.8: a layer's experts are read once per cohort, against once per chunk. 8192 tokens of qwen3-30b-a3b touch every expert in each of
// 16 chunks of 512; bytes of a cohort's 16 groups against those of the chunks, by the roofline.
TEST_F(LayerPricing, ACohortReadsTheExpertsOnce) {
  const CostSetup setup = setup_of("{model: qwen3-30b-a3b, hardware: h100, parallel: {tp: 2}}");
  const std::unique_ptr<CostModel> cost = make_cost_model(setup);
  const std::unique_ptr<Scheduler> scheduler = policy<SchedulerRegistry>("scheduler", "sarathi", "{}")();
  StepPricer pricer(*cost, *scheduler);
  std::int64_t layered = 0, chunked = 0;
  for (std::int32_t i = 0; i < 16; ++i) {
    layered += pricer.price(step_with({entry(8192, 0, 3 * i, i == 15 ? 0 : 3 * (i + 1))})).bytes;
    chunked += pricer.price(step_with({entry(512, 512 * i)})).bytes;
  }
  const std::int64_t experts = 48LL * 128 * 3 * 2048 * 768 * 2;  // bytes of all experts
  EXPECT_GT(chunked - layered, 14 * experts);
}

// One request of 600 tokens and one output: two steps with one group each, and its tokens count once.
TEST_F(LayerPricing, TokensOfACohortCountOnce) {
  const RunSummary summary = summary_of(basic_setup("layered_prefill"), {request_at(0, 600, 1)});
  EXPECT_EQ(summary.steps, 2U);
  EXPECT_DOUBLE_EQ(summary.batch_mean_tokens, 300);
  EXPECT_EQ(summary.output_tokens, 1);
}

// Experts of a group of ranks: the tokens of all ranks, and the bytes that cross between them, by hand.

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

// The experts of gpt-oss-120b on the shipped cards, compared with published kernel times and with a published throughput of prompts.

StepCost prompt_step(const std::string& card, int tp) {
  const std::string experiment = "model: gpt-oss-120b\nhardware: " + card + "\nparallel: {tp: " + std::to_string(tp) + "}\n";
  return prompt_cost(*make_cost_model(setup_of(experiment)), {8192, 0});
}

constexpr double kMsInPs = 1e9;
constexpr int kLayers = 36;

// Milliseconds of a layer's experts cut over 1, 2, 4 and 8 GPUs (NVIDIA aisimulate, Apache-2.0: vllm 0.24.0, w4a16_mxfp4 of gpt-oss,
// power_law_1.2).
TEST(ExpertTimes, PromptsOfGptOssAreNearTheKernelTables) {
  const std::tuple<const char*, int, double> rows[] = {
      {"h100", 1, 3.954}, {"h100", 2, 2.217},  {"h100", 4, 1.253}, {"h100", 8, 0.790},       {"h200", 1, 4.021},
      {"h200", 4, 1.228}, {"l40s", 1, 11.147}, {"l40s", 4, 3.326}, {"rtxpro6000", 1, 7.331}, {"rtxpro6000", 4, 2.326}};
  for (const auto& [card, tp, expected] : rows) {
    const double ms = static_cast<double>(prompt_step(card, tp).of(CostPart::kExperts).count()) / kMsInPs / kLayers;
    EXPECT_NEAR(ms / expected, 1, 0.25) << card << ", tp " << tp << ": " << ms << " ms";
  }
}

// Prompts of 5,000 tokens without output on H100 (vLLM 0.11, vllm bench serve): 4.75 a second on one GPU, 7.67 on two.
TEST(ExpertTimes, ASecondGpuMakesPromptsFasterByTheMeasuredRatio) {
  constexpr double kMeasured = 7.67 / 4.75;
  const auto one = static_cast<double>(prompt_step("h100", 1).total.count());
  const auto two = static_cast<double>(prompt_step("h100", 2).total.count());
  EXPECT_NEAR(one / two / kMeasured, 1, 0.05) << one / two;
}

// Hidden values cross the memory however the experts are cut, so that four times the GPUs never take a quarter of the time.
TEST(ExpertTimes, CutExpertsDoNotScaleAllTheWay) {
  for (const char* card : {"h100", "h200", "b200", "b300", "gb200", "a100-80gb", "l40s", "rtxpro6000"}) {
    const auto one = static_cast<double>(prompt_step(card, 1).of(CostPart::kExperts).count());
    const auto four = static_cast<double>(prompt_step(card, 4).of(CostPart::kExperts).count());
    EXPECT_GT(one / four, 2) << card;
    EXPECT_LT(one / four, 3.8) << card;
  }
}

}  // namespace
}  // namespace kvlab::testing
