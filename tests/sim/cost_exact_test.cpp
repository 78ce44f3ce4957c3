#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

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

}  // namespace
}  // namespace kvlab
