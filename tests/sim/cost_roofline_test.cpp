#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"
#include "sim/cost/cost_model.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

TEST(RooflineCost, OneDecodeStepByHand) {
  const auto cost = make_cost_model(roofline_setup());
  const StepCost step = cost->step(decode_shape(1, 9));
  // All memory-bound at 1 byte per picosecond, no launches. One token, fp16, hidden 16, 4 query and 2 KV heads of 4 channels.
  const std::int64_t norms = 2 * (4 * 1 + 1) * 16 * 2, qkv = 32 * 16 * 2 + (16 + 32) * 2, rope = 13 * 4 * 2, append = 2 * 8 * 4 + 8;
  const std::int64_t o = 16 * 16 * 2 + 32 * 2, gate_up = 64 * 16 * 2 + (16 + 64) * 2, act = 3 * 32 * 2, down = 32 * 16 * 2 + 48 * 2;
  const std::int64_t once = (2 * 16 * 2 + 4) + 5 * 16 * 2;
  EXPECT_EQ(step.of(CostPart::kLinear).count(), 2 * (norms + qkv + rope + append + o + gate_up + act + down) + once);
  EXPECT_EQ(step.of(CostPart::kAttention).count(),
            2 * (2 * 10 * 2 * 4 * 2 + 2 * 16 * 2));  // ten tokens of K and V: nine cached and its own
  EXPECT_EQ(step.of(CostPart::kHead).count(), (64 * 16 * 2 + (16 + 64) * 2) + (64 * 2 + 4));
  EXPECT_EQ(std::tuple(step.of(CostPart::kCollective).count(), step.total.count()), std::tuple(0, step.bytes));
  EXPECT_EQ(step.of(Footing::kRoofline).count(), step.total.count());  // nothing here was measured
}

// 2 layers, 8 tokens, 2 of 4 experts each: 16 pairs of 16 values of 2 bytes, at a byte per picosecond.
TEST(RooflineCost, HiddenValuesOfExpertsCrossTheMemoryHoweverTheyAreCut) {
  const auto linear = [&](const std::string& keys, int tp) {
    const std::string model = std::string(kTinyModel) + "num_local_experts: 4\nnum_experts_per_tok: 2\n";
    const CostSetup setup = roofline_setup("parallel: {tp: " + std::to_string(tp) + "}\n", model, kTinyCard + keys);
    return make_cost_model(setup)->step(decode_shape(8, 8)).of(CostPart::kExperts).count();
  };
  for (const int tp : {1, 2}) {
    const std::int64_t once = linear("experts_passes: 1\n", tp), thrice = linear("experts_passes: 3\n", tp);
    EXPECT_NEAR(static_cast<double>(thrice - once), 2 * 2 * 16 * 16 * 2, 2) << tp;
  }
  const std::int64_t fast = linear("experts_passes: 1\n", 1), half = linear("experts_passes: 1\nexperts_bandwidth_frac: 0.5\n", 1);
  const double weights = 4 * (1 - 1.0 / 256) * 3 * 16 * 32 * 2;  // of the experts that are expected to run
  EXPECT_NEAR(static_cast<double>(half - fast), 2 * weights, 4);
}

TEST(RooflineCost, AnL2CacheOf50BytesIsRefused) {
  const std::string message =
      error_of([&] { static_cast<void>(roofline_setup("", kTinyModel, std::string(kTinyCard) + "l2_bytes: 50\n")); });
  EXPECT_THAT(message, HasSubstr("50 MiB is 52428800"));
}

TEST(RooflineCost, ComputeBoundPrefillRunsAtPeak) {
  const std::string slow =
      "source: x\nmemory_bytes: 16777216\nmemory_bandwidth_bytes_per_s: 1e17\nfp16_flops: 1e12\npcie_bytes_per_s: 1e10\nlaunch_ns: "
      "0\nflops_frac: 0.5\n";
  const auto cost = make_cost_model(roofline_setup("", kTinyModel, slow));
  const StepCost step = prompt_cost(*cost, {512, 0});
  EXPECT_NEAR(static_cast<double>(step.total.count()), static_cast<double>(step.flops) / 0.5, 20);  // 1e12 FLOP/s: a FLOP per ps
  EXPECT_EQ(cost->prefill_seconds(512, 0), static_cast<double>(step.total.count()) * 1e-12);
}

TEST(RooflineCost, LaunchesArePaidPerKernel) {
  std::string card = kTinyCard;
  card.replace(card.find("launch_ns: 0"), 12, "launch_ns: 1");
  const auto with = make_cost_model(roofline_setup("", kTinyModel, card))->step(decode_shape(1, 9)).total.count();
  const auto without = make_cost_model(roofline_setup())->step(decode_shape(1, 9)).total.count();
  // A layer: 2 norms, qkv, rope, append, attention, o, gate_up, act, down; a step: embedding, norm, head, sampling.
  EXPECT_EQ(with - without, (2 * 10 + 4) * 1000);
}

TEST(RooflineCost, Llama8BOnH100IsNearTheMemoryBound) {
  const auto cost = make_cost_model(setup_of("model: llama-3.1-8b\nhardware: h100\n"));
  const double ms = static_cast<double>(cost->step(decode_shape(1, 1000)).total.count()) * 1e-9;
  EXPECT_GT(ms, 15.0e9 / 3.35e12 * 1e3);  // all weights but the embedding, at full bandwidth
  EXPECT_LT(ms, 8.0);
  EXPECT_DOUBLE_EQ(cost->peak_flops(), 989.4e12);
}

TEST(RooflineCost, NoWorkCostsNothing) {
  const auto cost = make_cost_model(setup_of("model: llama-3.1-8b\nhardware: h100\n"));
  EXPECT_EQ(cost->step(StepShape{}).total.count(), 0);
  StepShape padded = decode_shape(3, 300);
  const StepCost plain = cost->step(padded);
  padded.padding_rows = 5;
  const StepCost more = cost->step(padded);
  EXPECT_GT(more.of(CostPart::kLinear).count(), plain.of(CostPart::kLinear).count());
  for (const CostPart part : {CostPart::kAttention, CostPart::kHead}) EXPECT_EQ(more.of(part), plain.of(part));
}

TEST(RooflineCost, LayersArePricedAlone) {
  const auto cost = make_cost_model(setup_of("model: llama-3.1-8b\nhardware: h100\n"));
  StepShape shape = decode_shape(8, 8 * 1000);
  const StepCost whole = cost->step(shape);
  shape.layers = 32;
  const StepCost layers = cost->step(shape);
  EXPECT_EQ(layers.of(CostPart::kAttention).count(), whole.of(CostPart::kAttention).count());
  EXPECT_EQ(layers.of(CostPart::kHead).count(), 0);
  shape.layers = 8;
  const StepCost quarter = cost->step(shape);
  EXPECT_EQ(4 * quarter.of(CostPart::kLinear).count(), layers.of(CostPart::kLinear).count());
  EXPECT_NEAR(static_cast<double>(4 * quarter.of(CostPart::kAttention).count()),
              static_cast<double>(layers.of(CostPart::kAttention).count()), 4);
}

TEST(RooflineCost, PolicyOperationsArePricedFromTheirBytes) {
  const auto cost = make_cost_model(roofline_setup());
  StepShape shape = decode_shape(1, 9);
  const std::int64_t without = cost->step(shape).total.count();
  const PolicyOp op{"compact_rows", 2, 100, 0, false};
  shape.ops = {&op, 1};
  StepCost step = cost->step(shape);
  EXPECT_EQ(step.of(CostPart::kPolicy).count(), 100);  // at 1 TB/s, launches for nothing
  EXPECT_EQ(step.total.count(), without + 100);
  EXPECT_EQ(step.of(Footing::kRoofline), step.total);
  const PolicyOp fetch{"fetch", 2, 25'000, 0, true};  // 2.5 us at 10 GB/s to the host, and two calls of 10 us
  shape.ops = {&fetch, 1};
  step = cost->step(shape);
  EXPECT_EQ(step.of(CostPart::kPolicy).count(), 2'500'000 + 2 * 10'000'000);
  EXPECT_EQ(step.of(Footing::kDatasheet), step.of(CostPart::kPolicy));
  EXPECT_EQ(step.bytes, cost->step(decode_shape(1, 9)).bytes) << "not from the GPU's memory";
}

TEST(RooflineCost, SlidingWindowLevelsDecodeOff) {
  const auto cost = make_cost_model(roofline_setup("", std::string(kTinyModel) + "sliding_window: 100\n"));
  ASSERT_EQ(cost->windows().every_layer, 100);
  const auto rows = [](const std::vector<std::int32_t>& kv) { return rows_shape(kv, {100, 0}); };
  const StepCost full = cost->step(rows({99, 99})), longer = cost->step(rows({2500, 2500}));
  EXPECT_EQ(std::pair(full.total, full.bytes), std::pair(longer.total, longer.bytes));
  EXPECT_LT(cost->step(rows({98, 99})).total, full.total);
  EXPECT_EQ(cost->decode_span(rows({50, 50})).valid_steps, 49);  // at 99 both rows fill the window
  // One long row among short ones sees no more than the window, too.
  const StepShape uneven = rows({2500, 10, 20});
  const StepCost seen = cost->step(rows({99, 10, 20}));
  EXPECT_EQ(std::pair(cost->step(uneven).total, cost->step(uneven).flops), std::pair(seen.total, seen.flops));
  const DecodeSpan span = cost->decode_span(uneven);
  EXPECT_EQ(span.valid_steps, 79);
  EXPECT_EQ(span.base.total.count() + 10 * span.slope.total.count(), cost->step(rows({2510, 20, 30})).total.count());
  EXPECT_EQ(cost->decode_span(rows({99, 500})).slope.total.count(), 0);
}

// Rows that pad a batch take time, and do nothing of use; those of finished members of a static batch count as work.
TEST(RooflineCost, PaddingIsNoUsefulWork) {
  const auto cost = make_cost_model(roofline_setup());
  StepShape shape = decode_shape(9, 900);
  const StepCost plain = cost->step(shape);
  shape.padding_rows = 1000;
  const StepCost padded = cost->step(shape);
  EXPECT_GT(padded.total.count(), plain.total.count());
  EXPECT_EQ(std::pair(padded.flops, padded.bytes), std::pair(plain.flops, plain.bytes));
  EXPECT_EQ(cost->decode_span(shape).base.flops, plain.flops);
  shape.idle_rows = 1000, shape.padding_rows = 0;
  EXPECT_EQ(cost->step(shape).total.count(), padded.total.count());
  EXPECT_GT(cost->step(shape).flops, plain.flops);
}

TEST(ParallelCost, TensorParallelAddsTwoAllReducesPerLayer) {
  const auto one = make_cost_model(roofline_setup())->step(decode_shape(4, 40));
  const auto two = make_cost_model(roofline_setup("parallel: {tp: 2}\n"))->step(decode_shape(4, 40));
  // A message of 4 tokens * 16 channels * 2 bytes at 0.6 of 10 GB/s, in one shot after 1 us; twice in each of 2 layers and once for the
  // embedding. Prices are rounded once for both of a layer.
  const double sum = 4 * 16 * 2 * 100 / 0.6 + 1'000'000;
  EXPECT_NEAR(two.of(CostPart::kCollective).real(), 5 * sum, 3);
  for (const CostPart part : {CostPart::kLinear, CostPart::kAttention}) EXPECT_LT(two.of(part), one.of(part));
  EXPECT_EQ(two.flops, one.flops);  // useful work of the replica does not depend on how it is cut
}

TEST(ParallelCost, StagesSumToTheStep) {
  const auto cost = make_cost_model(setup_of("model: llama-3.1-8b\nhardware: h100\nparallel: {tp: 2, pp: 3}\n"));
  const PrefillPiece piece{700, 30};
  StepShape shape = decode_shape(8, 8000);
  shape.prefills = {&piece, 1};
  std::vector<Picoseconds> stages;
  cost->stage_times(shape, stages);
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_EQ(cost->num_stages(), 3);
  EXPECT_EQ(std::accumulate(stages.begin(), stages.end(), Picoseconds{}), cost->step(shape).total);
  for (const Picoseconds s : stages) EXPECT_GT(s, Picoseconds{});
  EXPECT_DOUBLE_EQ(cost->peak_flops(), 6 * 989.4e12);
  const auto single = make_cost_model(setup_of("model: llama-3.1-8b\nhardware: h100\n"));
  single->stage_times(shape, stages);
  EXPECT_THAT(stages, ::testing::ElementsAre(single->step(shape).total));
}

TEST(ParallelCost, ExpertsReadFewerWeightsPerRankAndSwapTokens) {
  const auto cost = [](const std::string& parallel) {
    return make_cost_model(setup_of("model: qwen3-30b-a3b\nhardware: h100\n" + parallel))->step(decode_shape(64, 64'000));
  };
  const StepCost one = cost(""), eight = cost("parallel: {tp: 1, ep: 8}\n");
  EXPECT_LT(eight.of(CostPart::kExperts).count(), one.of(CostPart::kExperts).count() / 3);
  EXPECT_EQ(one.of(CostPart::kCollective).count(), 0);
  EXPECT_GT(eight.of(CostPart::kCollective).count(), 0);
  EXPECT_LT(eight.of(CostPart::kAttention).count(), one.of(CostPart::kAttention).count());  // attention is data parallel
  EXPECT_EQ(eight.bytes, one.bytes);
}

TEST(CostSetup, Errors) {
  const auto error = [](const std::string& yaml) { return error_of([&] { setup_of(yaml); }); };
  const std::string base = "model: llama-3.1-8b\nhardware: h100\n";
  EXPECT_THAT(error("hardware: h100\n"), HasSubstr("needs 'model'"));
  EXPECT_THAT(error("model: llama-3.1-8b\nhardware: h1OO\n"), HasSubstr("<test>:2:11: unknown hardware 'h1OO'"));
  EXPECT_THAT(error(base + "parallel: {tp: 3}\n"), HasSubstr("'tp' = 3 does not divide the 32 query heads"));
  EXPECT_THAT(error(base + "parallel: {pp: 33}\n"), HasSubstr("more than the 32 layers"));
  EXPECT_THAT(error(base + "parallel: {ep: 2}\n"), HasSubstr("has no experts"));
  EXPECT_THAT(error("model: mixtral-8x7b\nhardware: h100\nparallel: {ep: 3}\n"), HasSubstr("does not divide the 8 experts"));
  EXPECT_THAT(error(base + "parallel: {tq: 2}\n"), HasSubstr("did you mean 'tp'"));
  EXPECT_THAT(error(base + "profile: bundel\n"), HasSubstr("did you mean 'bundle'"));
  EXPECT_THAT(error(base + "profile: {bundle: {}}\n"), HasSubstr("needs 'path'"));
}

TEST(NumBlocks, FollowsTheFormula) {
  const CostSetup setup = setup_of("model: llama-3.1-8b\nhardware: h100\n");
  const auto usable = static_cast<std::int64_t>(0.9 * (81'559.0 - 512) * 1'048'576);
  const std::int64_t left = usable - 16'060'522'496 - 2'000'000'000;
  EXPECT_EQ(derive_num_blocks(setup, 0.9, 2'000'000'000, 16), left / (16 * 131'072));
  const CostSetup two = setup_of("model: llama-3.1-8b\nhardware: h100\nparallel: {tp: 2}\n");
  const std::int64_t left_two = usable - weight_bytes(two.model, 2) - 2'000'000'000;
  EXPECT_EQ(derive_num_blocks(two, 0.9, 2'000'000'000, 16), left_two / (16 * 65'536));
  // 2048 tokens * (3 * 4096 + 3 * 14336) * 2 bytes, or rows of 128,256 logits in bf16 and fp32 where these are more.
  const std::int64_t fixed = 131'072LL * 128 * 2 + (350LL << 20);  // rotary table, context
  EXPECT_EQ(default_reserve_bytes(setup, {2048, 256, 0}), 2048LL * 55'296 * 2 + fixed);
  EXPECT_EQ(default_reserve_bytes(setup, {2048, 512, 51}), 512LL * 128'256 * 6 + 51LL * 32 * (365 << 10) + fixed);
}

TEST(NumBlocks, ModelTooLargeIsAnError) {
  const CostSetup setup = setup_of("model: llama-3.1-70b\nhardware: h100\n");
  EXPECT_THAT(error_of([&] { (void)derive_num_blocks(setup, 0.9, 0, 16); }),
              ::testing::AllOf(HasSubstr("leaves no KV block"), HasSubstr("raise parallel.tp")));
}

bool is_same(const StepCost& a, const StepCost& b) {
  return a.total == b.total && a.times == b.times && a.flops == b.flops && a.bytes == b.bytes;
}

bool adds_up(const StepCost& c) {
  Picoseconds sum;
  for (std::size_t f = 0; f < kFootings; ++f) sum += c.of(static_cast<Footing>(f));
  return sum == c.total;
}

// Rows of a decode batch, one by one, so that totals and extremes stay consistent along a span.
struct Rows {
  std::vector<std::int32_t> kv;
  [[nodiscard]] StepShape shape(const AttentionWindows& windows) const { return rows_shape(kv, windows); }
  void grow(std::int64_t steps) {
    for (std::int32_t& tokens : kv) tokens += static_cast<std::int32_t>(steps);
  }
};

Rows draw_rows() {
  const int n = *rc::gen::weightedOneOf<int>({{3, rc::gen::inRange(1, 12)}, {1, rc::gen::inRange(12, 300)}});
  const int longest = *rc::gen::element(30, 300, 3000, 20'000);
  Rows rows;
  rows.kv = *rc::gen::container<std::vector<std::int32_t>>(static_cast<std::size_t>(n), rc::gen::inRange(1, longest));
  return rows;
}

// Step i of a span is base + i * slope to the last picosecond, FLOP and byte, for the first, the last and one step between;
// a span that begins inside another agrees with it; the span ends before anything else is priced.
void check_one_span(CostModel& cost) {
  Rows rows = draw_rows();
  const AttentionWindows windows = cost.windows();
  const StepShape shape = rows.shape(windows);
  const DecodeSpan span = cost.decode_span(shape);
  RC_ASSERT(span.valid_steps >= 1);
  RC_ASSERT(is_same(span.base, cost.step(shape)));
  RC_ASSERT(adds_up(span.base));
  RC_ASSERT(adds_up(span.slope));
  const std::int64_t usable = std::min<std::int64_t>(span.valid_steps, 100'000);
  const std::int64_t middle = *rc::gen::inRange<std::int64_t>(0, usable);
  for (const std::int64_t i : {std::int64_t{0}, middle, usable - 1}) {
    Rows later = rows;
    later.grow(i);
    StepCost expected = span.base;
    expected.add(span.slope, i);
    RC_ASSERT(is_same(cost.step(later.shape(windows)), expected));
    const DecodeSpan inner = cost.decode_span(later.shape(windows));
    RC_ASSERT(is_same(inner.slope, span.slope));
    if (span.valid_steps < 100'000) RC_ASSERT(inner.valid_steps == span.valid_steps - i);
  }
}

void check_span(CostModel& cost) {
  for (int i = 0; i < 10; ++i) check_one_span(cost);
}

RC_GTEST_PROP(CostExactness, Roofline, ()) {
  static const CostSetup setup = setup_of("model: llama-3.1-8b\nhardware: h100\n");
  check_span(*make_cost_model(setup));
}

RC_GTEST_PROP(CostExactness, RooflineWithParallelismAndWindow, ()) {
  static const TempFolder folder;
  static const CostSetup setup = setup_of(
      "model: " + folder.write("m.yaml", std::string(kTinyModel) + "sliding_window: 500\nnum_local_experts: 4\nnum_experts_per_tok: 2\n") +
      "\nhardware: h100\nparallel: {tp: 2, pp: 2, ep: 4}\n");
  check_span(*make_cost_model(setup));
}

RC_GTEST_PROP(CostExactness, TinyBundle, ()) {
  static const TempFolder folder;
  static const CostSetup setup = (write_tiny_bundle(folder), setup_of(tiny_experiment(folder)));
  check_span(*make_cost_model(setup));
}

RC_GTEST_PROP(CostExactness, TinyBundleWithSkew, ()) {
  static const TempFolder folder;
  static const CostSetup setup = [] {
    write_tiny_bundle(folder,
                      "skew_fit:\n  enabled: true\n  bucket_axes:\n    n_bins: [0, 4, 1000]\n    n_labels: [few, many]\n    "
                      "skew_rate_bins: [-0.01, 0.3, 1.01]\n"
                      "    skew_rate_labels: [low, high]\n    kv_big_bins: [0, 256, 100000]\n    kv_big_labels: [short, long]\n    "
                      "kp_bins: [-1, 0, 100000]\n"
                      "    kp_labels: [none, some]\n  per_tp:\n    1: {alpha_default: 0.25, bucket_table: tp1/skew_fit.csv}\n");
    folder.write(
        "tp1/skew_fit.csv",
        "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n0,few,low,short,none,0.1,4\n0,few,high,long,none,0.7,4\n");
    return setup_of(tiny_experiment(folder));
  }();
  check_span(*make_cost_model(setup));
}

using RealBundle = RealBundleTest;

TEST_P(RealBundle, SpansAreExact) {
  const auto cost = make_cost_model(setup_);
  EXPECT_TRUE(rc::check([&] { check_span(*cost); }));
}

// Decode cost is a continuous function of the tokens up to the rounding of slopes: cell edges have no jumps.
TEST_P(RealBundle, CellsMeetAtTheirEdges) {
  const auto cost = make_cost_model(setup_);
  for (const int rows : {1, 3, 37, 256, 300}) {
    for (std::int64_t tokens = rows; tokens < rows * 20'000LL;) {
      const auto even = [&](std::int64_t kv) { return decode_shape(rows, kv, 1, 1); };
      const DecodeSpan span = cost->decode_span(even(tokens));
      if (span.valid_steps > 1 << 30) break;
      const Picoseconds here = span.base.total + span.valid_steps * span.slope.total,
                        next = cost->step(even(tokens + rows * span.valid_steps)).total;
      EXPECT_NEAR(here.real(), next.real(), 1e-5 * next.real() + 1) << rows << " rows at " << tokens;
      tokens += rows * span.valid_steps;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cards, RealBundle, ::testing::Values("RTX4090", "RTXPRO6000"));

// Decode rows that are alike are counted at once.

auto fields_of(const StepShape& s) {
  return std::tuple(s.decodes, s.decode_kv_tokens, s.decode_kv_max, s.decode_kv_min, s.decode_kv_squares, s.decode_full, s.decode_open_max,
                    s.in_window.kv_tokens, s.in_window.full, s.in_window.open_max);
}

TEST(DecodeRows, RowsAlikeAreThoseOneByOne) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto draw = [&](std::uint64_t step, std::uint64_t n) { return Draw{seed, Purpose::kTest, 0, step, 0}.below(n); };
    AttentionWindows windows;
    if (const auto kind = draw(0, 3); kind > 0) (kind == 1 ? windows.every_layer : windows.some_layers) = 100;
    for (std::uint64_t group = 0; group < 3; ++group) {
      const auto rows = static_cast<std::int32_t>(draw(1 + 2 * group, 5)), kv = static_cast<std::int32_t>(draw(2 + 2 * group, 200));
      StepShape single;
      for (std::int32_t i = 0; i < rows; ++i) add_decode_row(single, kv, windows);
      ASSERT_EQ(fields_of(equal_decode_rows(rows, kv, windows)), fields_of(single)) << "seed " << seed;
    }
  }
}

// As many rows as a loop would take seconds for.
TEST(DecodeRows, ManyRowsCostNoMoreThanOne) {
  const StepShape shape = equal_decode_rows(1 << 30, 3, {});
  EXPECT_EQ(std::tuple(shape.decodes, shape.decode_kv_tokens, shape.decode_kv_squares),
            std::tuple(1 << 30, std::int64_t{3} << 30, std::int64_t{9} << 30));
}

}  // namespace
}  // namespace kvlab
