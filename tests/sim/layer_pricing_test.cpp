// Steps whose entries pass some of the layers, priced by hand.
#include "sim/pricing.h"
#include "tests/error_of.h"
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

}  // namespace
}  // namespace kvlab::testing
