// TokenWeave: where a step is split, and times by hand of steps whose all-reduces run beside the computation.
#include "sim/cost/token_weave.h"

#include "tests/sim/cost_support.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

TokenWeaveRule rule_of(std::int64_t sms, bool wave_aware = true) {
  TokenWeaveRule rule;
  rule.sms = sms;
  rule.wave_aware = wave_aware;
  return rule;
}

// ---- the split ----

TEST(TokenSplit, WavesAreTilesOverSms) {
  const TokenWeaveRule h100 = rule_of(132);
  EXPECT_EQ(waves(h100, 1024, 8192), 4);  // 8 x 64 tiles
  EXPECT_EQ(waves(h100, 512, 8192), 2);
  EXPECT_EQ(waves(h100, 1, 1), 1);
  EXPECT_EQ(waves(h100, 129, 132 * 128), 2);
}

// 4,096 columns on 128 SMs: a wave is 4 tiles of 128 tokens. 1,100 tokens have 9 of them, so 3 waves: as 5 + 4 still 3, as 550 + 550 it
// is 4.
TEST(TokenSplit, KeepsTheWavesOfTheWholeStep) {
  const std::vector<WovenProduct> products{{4096, 1, false}, {4096, 3, true}};
  const TokenSplit aware = split_tokens(rule_of(128), 1100, products), middle = split_tokens(rule_of(128, false), 1100, products);
  EXPECT_EQ(std::pair(aware.first, middle.first), std::pair(std::int64_t{640}, std::int64_t{550}));
  for (const auto waves_of : {&TokenSplit::attention_waves, &TokenSplit::feed_forward_waves}) {
    EXPECT_DOUBLE_EQ(aware.*waves_of, 1);
    EXPECT_DOUBLE_EQ(middle.*waves_of, 4.0 / 3);
  }
}

// 3 tiles in a wave: 1,024 tokens take 3 waves as 4 + 4 they take 4, as 5 + 3 or 6 + 2 again 3.
TEST(TokenSplit, TakesUpToTwoTilesMoreForFewerWaves) {
  const std::vector<WovenProduct> products{{4096, 1, true}};
  EXPECT_EQ(split_tokens(rule_of(96), 1024, products).first, 5 * 128);
  EXPECT_DOUBLE_EQ(split_tokens(rule_of(96), 1024, products).feed_forward_waves, 1);
}

// The products of Llama-3.3-70B over 8 ranks.
TEST(TokenSplit, WaveAwareIsNeverWorse) {
  const std::vector<WovenProduct> products{{1280, 10.5, false}, {8192, 8.4, false}, {7168, 58.7, true}, {8192, 29.4, true}};
  const auto sum = [](const TokenSplit& s) { return 18.9 * s.attention_waves + 88.1 * s.feed_forward_waves; };
  int better = 0;
  for (std::int64_t tokens = 1024; tokens < 20'000; tokens += 37) {
    const TokenSplit aware = split_tokens(rule_of(132), tokens, products), middle = split_tokens(rule_of(132, false), tokens, products);
    EXPECT_EQ(aware.first % 128, 0);
    EXPECT_LT(aware.first, tokens);
    EXPECT_LE(sum(aware), sum(middle) + 1e-9) << tokens;
    better += sum(aware) < sum(middle) - 1e-9 ? 1 : 0;
  }
  EXPECT_GT(better, 100);
}

// Fewer tokens than two tiles: nothing to split into whole tiles.
TEST(TokenSplit, NeedsTwoTiles) { EXPECT_EQ(split_tokens(rule_of(132), 128, {}).first, 0); }

// 4 layers. Half-layer collectives 40 and 60 of all layers: 60 beside 50 but in the first layer, 40 beside 30, none beside 100 and 90, and
// 60 / 4 at the end.
TEST(TokenSplit, ExposedCollectivesByHand) {
  EXPECT_DOUBLE_EQ(exposed_ps({{{50, 100, 80}, {30, 90, 120}}}, 4), 10 * 3 / 4.0 + 10 + 15);
  EXPECT_DOUBLE_EQ(exposed_ps({{{0, 0, 80}, {0, 0, 80}}}, 4), 40 * 3 / 4.0 + 3 * 40 + 10);  // nothing hides: all of it
}

// ---- steps ----

// In each of 2 layers a token takes 100 ps (50 feed-forward, 10 norms) and 20 in collectives; attention of both layers 30 in prompts.
class TokenPrices final : public StepPrices {
 public:
  explicit TokenPrices(Footing products) : products_(products) {}
  [[nodiscard]] TokenPrice tokens(std::int64_t tokens) const override {
    const auto t = static_cast<double>(tokens);
    TokenPrice price;
    TokenPrice::Layer& layer = price.layers.emplace_back();
    layer.count = 2;
    layer.linear.add(100 * t, products_);
    layer.mlp.add(50 * t, products_);
    layer.norms.add(10 * t, products_);
    layer.collective.add(20 * t, Footing::kInterpolated);
    price.once.add(7 * t, Footing::kInside);
    price.once_collective.add(3 * t, Footing::kInterpolated);
    return price;
  }
  [[nodiscard]] Price experts(std::int64_t) const override { return {}; }
  [[nodiscard]] Price exchange(const GroupTokens&) const override { return {}; }
  [[nodiscard]] Price head(std::int64_t) const override { return {}; }
  [[nodiscard]] DecodeCurve decode_attention(std::size_t, std::int64_t rows) const override {
    return {{{0, static_cast<double>(rows), 0.5, Footing::kInside}}};
  }
  [[nodiscard]] Price mixed_attention(const StepShape& shape) const override {
    Price price;
    for (const PrefillPiece& piece : shape.prefills) price.add(30 * piece.new_tokens, Footing::kRoofline);
    return price;
  }
  [[nodiscard]] Price policy(const PolicyOp&) const override { return {}; }
  [[nodiscard]] Price send(std::int64_t) const override { return {}; }

 private:
  Footing products_;
};

const std::string kCardWithSms = std::string(kTinyCard) + "sms: 128\n";

// Every product has 4,096 columns on one of two ranks.
CostSetup weave_setup(const std::string& parallel, const std::string& card = kCardWithSms, Footing products = Footing::kRoofline) {
  CostSetup setup = roofline_setup("parallel: " + parallel + "\n",
                                   "hidden_size: 4096\nnum_hidden_layers: 2\nnum_attention_heads: 32\nnum_key_value_heads: 16\n"
                                   "intermediate_size: 4096\nvocab_size: 64\ntorch_dtype: float16\n",
                                   card);
  setup.prices = std::make_shared<TokenPrices>(products);
  return setup;
}

StepCost weave_prompt(const std::string& parallel, std::int32_t tokens, std::int32_t layers = 0, Footing products = Footing::kRoofline) {
  return prompt_cost(*make_cost_model(weave_setup(parallel, kCardWithSms, products)), {tokens, 0}, 0, layers);
}

constexpr const char* kWoven = "{tp: 2, overlap: token_weave}";
constexpr const char* kInTheMiddle = "{tp: 2, overlap: {token_weave: {wave_aware: false}}}";

// 640 + 460 tokens; 128 of 120 SMs: the computation takes 16/15, in the first layer's attention 1. Collectives of half a layer, 12,800 and
// 9,200 of both layers, are shorter than the attention part, so the last alone is exposed.
TEST(TokenWeave, TimeByHand) {
  const StepCost plain = weave_prompt("{tp: 2}", 1100), woven = weave_prompt(kWoven, 1100);
  EXPECT_EQ(plain.total.count(), (200 + 30 + 40 + 7 + 3) * 1100);
  EXPECT_EQ(woven.of(CostPart::kLinear).count(), 121'173 + 88'320 + 7 * 1100);
  EXPECT_EQ(woven.of(CostPart::kAttention).count(), 19'840 + 14'720);
  EXPECT_EQ(woven.of(CostPart::kCollective).count(), 9'200 / 2 + 3 * 1100);
  Picoseconds sum;
  for (std::size_t p = 0; p < kCostParts; ++p) sum += woven.of(static_cast<CostPart>(p));
  EXPECT_EQ(sum, woven.total);
  EXPECT_EQ(std::pair(woven.flops, woven.bytes), std::pair(plain.flops, plain.bytes));
}

// The pitfall: 550 + 550 tokens take 4 waves in place of 3. That loses, so the step is not split.
TEST(TokenWeave, WithoutWavesInMindTheSplitLoses) {
  const StepCost plain = weave_prompt("{tp: 2}", 1100), middle = weave_prompt(kInTheMiddle, 1100);
  EXPECT_EQ(std::tuple(middle.total, middle.times), std::tuple(plain.total, plain.times));
  EXPECT_LT(weave_prompt(kWoven, 1100).total, plain.total);
}

// Times of a table have the waves of each half in them: the same split pays. The computation takes 16/15, in the first layer's first
// half 1.
TEST(TokenWeave, MeasuredTimesHaveTheirWaves) {
  const StepCost plain = weave_prompt("{tp: 2}", 1100, 0, Footing::kInside), woven = weave_prompt(kInTheMiddle, 1100, 0, Footing::kInside);
  EXPECT_LT(woven.total, plain.total);
  EXPECT_EQ(woven.of(CostPart::kAttention).count(), 30 * 550 * 31 / 30 + 30 * 550 * 16 / 15);
}

TEST(TokenWeave, ShorterStepsAreNotSplit) {
  EXPECT_EQ(weave_prompt(kWoven, 1023).times, weave_prompt("{tp: 2}", 1023).times);
  EXPECT_LT(weave_prompt(kWoven, 1024).total, weave_prompt("{tp: 2}", 1024).total);
  EXPECT_EQ(weave_prompt("{tp: 2, overlap: {token_weave: {min_tokens: 2000}}}", 1100).times, weave_prompt("{tp: 2}", 1100).times);
}

TEST(TokenWeave, NoStepIsSlower) {
  for (std::int32_t tokens = 1000; tokens < 6000; tokens += 61)
    EXPECT_LE(weave_prompt(kWoven, tokens).total, weave_prompt("{tp: 2}", tokens).total) << tokens;
}

// Schedulers that compute some of the layers add up the groups, and take the head from a whole step less its layers.
TEST(TokenWeave, AllLayersAreAWholeStepWithoutItsEnds) {
  const StepCost whole = weave_prompt(kWoven, 1100), layers = weave_prompt(kWoven, 1100, 2);
  EXPECT_EQ((whole.total - layers.total).count(), (7 + 3) * 1100);
  EXPECT_GT(2 * weave_prompt(kWoven, 1100, 1).total.count(), layers.total.count());  // each group has a first and a last collective
}

// Decode rows come first, then prompts, of which one is cut.
TEST(TokenWeave, DecodeRowsAndPromptsTogether) {
  const PrefillPiece pieces[] = {{300, 50}, {700, 0}};
  StepShape shape = decode_shape(100, 100'000, 1000, 1000);
  shape.prefills = pieces;
  const StepCost plain = make_cost_model(weave_setup("{tp: 2}"))->step(shape), woven = make_cost_model(weave_setup(kWoven))->step(shape);
  EXPECT_LT(woven.total, plain.total);
  // 640 tokens in the first half: 100 rows, 300 and 240 of the prompts' tokens; 460 in the second.
  EXPECT_EQ(woven.of(CostPart::kAttention).count(), 30 * 540 * 31 / 30 + 30 * 460 * 16 / 15);
}

// ---- spans of decode steps ----

TEST(TokenWeave, SpansEndWhereStepsMayBeSplit) {
  const auto plain = make_cost_model(weave_setup("{tp: 2}")), woven = make_cost_model(weave_setup(kWoven));
  const DecodeSpan small = woven->decode_span(decode_shape(1000, 500'000, 500, 500)),
                   same = plain->decode_span(decode_shape(1000, 500'000, 500, 500));
  EXPECT_EQ(std::tuple(small.valid_steps, small.base.times, small.slope.times),
            std::tuple(same.valid_steps, same.base.times, same.slope.times));
  EXPECT_GT(small.valid_steps, 1);
  const StepShape large = decode_shape(1100, 550'000, 500, 500);
  const DecodeSpan span = woven->decode_span(large);
  EXPECT_EQ(span.valid_steps, 1);
  EXPECT_EQ(std::pair(span.base.times, span.base.total), std::pair(woven->step(large).times, woven->step(large).total));
  EXPECT_LT(span.base.total, plain->step(large).total);
}

// Batches of 8 and more are split, smaller ones are not: the run is the same with fast-forward on and off.
TEST(TokenWeave, FastForwardChangesNothing) {
  const auto run = [&](const std::string& parallel, bool fast_forward) {
    const CostSetup cost = weave_setup(parallel);
    SimSetup sim = basic_setup("vllm_v1", "{max_num_seqs: 16, largest_graph_tokens: 0}");
    sim.make_cost_model = [cost] { return make_cost_model(cost); };
    sim.fast_forward = fast_forward;
    std::vector<TraceRequest> requests;
    for (int i = 0; i < 24; ++i) requests.push_back(request_at(1e-6 * i, 20 + 3 * i, 60 + 20 * (i % 7)));
    return summary_of(sim, requests);
  };
  const char* const small = "{tp: 2, overlap: {token_weave: {min_tokens: 8, tile_tokens: 1}}}";
  const RunSummary on = run(small, true), off = run(small, false);
  EXPECT_EQ(std::tuple(on.duration, on.steps, on.step_shares, on.peak_s), std::tuple(off.duration, off.steps, off.step_shares, off.peak_s));
  EXPECT_LT(on.events, off.events);
  EXPECT_LT(on.duration, run("{tp: 2}", true).duration);
}

// ---- shipped cards and errors ----

TEST(ShippedTokenWeave, HidesMostOfTheCollectivesOfAPrompt) {
  for (const char* model : {"llama-3.3-70b", "qwen2.5-72b"}) {
    const std::string yaml = "model: " + std::string(model) + "\nhardware: h100\nparallel: {tp: 8";
    const StepCost plain = prompt_cost(*make_cost_model(setup_of(yaml + "}\n")), {8192, 0}, 1),
                   woven = prompt_cost(*make_cost_model(setup_of(yaml + ", overlap: token_weave}\n")), {8192, 0}, 1);
    EXPECT_LT(woven.of(CostPart::kCollective).count(), plain.of(CostPart::kCollective).count() / 2) << model;
    EXPECT_LT(woven.total, plain.total) << model;
    EXPECT_GT(woven.of(CostPart::kAttention), plain.of(CostPart::kAttention)) << model;  // fewer SMs
  }
}

TEST(TokenWeave, Errors) {
  const auto error = [&](const std::string& parallel, const std::string& card = kCardWithSms) {
    return error_of([&] { static_cast<void>(weave_setup(parallel, card)); });
  };
  EXPECT_THAT(error("{overlap: token_weave}"), HasSubstr("tp = 1 has none: raise 'tp'"));
  EXPECT_THAT(error("{tp: 2, pp: 2, overlap: token_weave}"), HasSubstr("of tensor parallelism alone"));
  EXPECT_THAT(error("{tp: 2, overlap: {token_weave: {comm_sms: 128}}}"), HasSubstr("'comm_sms' = 128 leaves none of the 128 SMs"));
  EXPECT_THAT(error("{tp: 2, overlap: token_waeve}"), HasSubstr("unknown overlap 'token_waeve'"));
  EXPECT_THAT(error("{tp: 2, overlap: {token_weave: {min_token: 9}}}"), HasSubstr("min_tokens"));
  EXPECT_THAT(error("{tp: 2, overlap: token_weave}", kTinyCard), HasSubstr("card: add 'sms: NUMBER' to "));
  EXPECT_EQ(error("{tp: 2, overlap: none}"), "no error");
}

}  // namespace
}  // namespace kvlab::testing
