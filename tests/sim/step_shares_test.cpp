// Step time by part and basis: sums and splits of costs by hand, waits for the host, and the same with fast-forward on and off.
#include <memory>

#include "kernels/model/layer/layer.h"
#include "sim/cost/step_cost_model.h"
#include "sim/cost/step_sums.h"
#include "tests/sim/cost_support.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

std::int64_t cell(StepCost& cost, CostPart part, Footing footing) { return cost.row(part)[static_cast<std::size_t>(footing)].count(); }

double share(const StepShares& shares, CostPart part, Basis basis) {
  return shares[static_cast<std::size_t>(part)][static_cast<std::size_t>(basis)];
}
double host_share(const StepShares& shares) { return shares[kCostParts][static_cast<std::size_t>(Basis::kMeasured)]; }

double sum_of(const StepShares& shares) {
  double sum = 0;
  for (const auto& part : shares)
    for (const double one : part) sum += one;
  return sum;
}

StepCost small_cost() {
  StepCost cost;
  charge(cost, CostPart::kLinear, Picoseconds{30}, Footing::kInside);
  charge(cost, CostPart::kLinear, Picoseconds{10}, Footing::kInterpolated);
  charge(cost, CostPart::kAttention, Picoseconds{20}, Footing::kRoofline);
  charge(cost, CostPart::kCollective, Picoseconds{25}, Footing::kDatasheet);
  charge(cost, CostPart::kExperts, Picoseconds{15}, Footing::kExtrapolated);
  return cost;
}

TEST(CostTotals, SharesByHand) {
  CostTotals totals;
  EXPECT_EQ(sum_of(totals.shares()), 0);
  totals.add(small_cost());
  totals.host = 25;
  const StepShares shares = totals.shares();
  EXPECT_DOUBLE_EQ(share(shares, CostPart::kLinear, Basis::kMeasured), 40 / 125.0);
  EXPECT_DOUBLE_EQ(share(shares, CostPart::kAttention, Basis::kRoofline), 20 / 125.0);
  EXPECT_DOUBLE_EQ(share(shares, CostPart::kCollective, Basis::kDatasheet), 25 / 125.0);
  EXPECT_DOUBLE_EQ(share(shares, CostPart::kExperts, Basis::kExtrapolated), 15 / 125.0);
  EXPECT_DOUBLE_EQ(host_share(shares), 25 / 125.0);
  EXPECT_DOUBLE_EQ(sum_of(shares), 1);
}

TEST(CostTotals, AStretchIsTheSumOfItsSteps) {
  StepCost slope, step = small_cost();
  charge(slope, CostPart::kAttention, Picoseconds{3}, Footing::kRoofline);
  CostTotals steps, stretch;
  stretch.add(step, slope, 5);
  for (int i = 0; i < 5; ++i) {
    steps.add(step);
    step.add(slope);
  }
  EXPECT_TRUE(steps.times == stretch.times);
  EXPECT_TRUE(steps.of(CostPart::kAttention) == 5 * 20 + 3 * (1 + 2 + 3 + 4));
}

// One of two layers: 11 inside tables and 14 beyond them are 5 and 7, where the five prices alone would be 2 + 3 and 2 + 3 + 1.
TEST(ChargeShare, RoundsOnceForAllPartsAndFootings) {
  const auto price = [](std::int64_t inside, std::int64_t extrapolated, std::int64_t roofline) {
    return ByFooting{Picoseconds{inside}, {}, Picoseconds{extrapolated}, Picoseconds{roofline}, {}};
  };
  const ByFooting linear = price(5, 0, 7), experts = price(6, 4, 3);
  StepCost cost;
  charge_share(cost, {{CostPart::kLinear, &linear}, {CostPart::kExperts, &experts}}, 1, 2);
  EXPECT_EQ(cost.total.count(), 12);
  EXPECT_EQ(cell(cost, CostPart::kLinear, Footing::kInside) + cell(cost, CostPart::kExperts, Footing::kInside), 5);
  EXPECT_EQ(cell(cost, CostPart::kLinear, Footing::kExtrapolated), 0);
  EXPECT_EQ(cell(cost, CostPart::kExperts, Footing::kExtrapolated), 2);
  EXPECT_EQ(cost.of(Footing::kRoofline).count(), 5);
}

// Tokens alone have a price: in a layer 10.6 ps inside a table and 23.7 beyond it, of which 20.4 are by the roofline.
class OddPrices final : public StepPrices {
 public:
  [[nodiscard]] TokenPrice tokens(std::int64_t) const override {
    TokenPrice price;
    TokenPrice::Layer& layer = price.layers.emplace_back();
    layer.count = 2;
    layer.linear.add(10.6, Footing::kInside);
    layer.linear.add(20.4, Footing::kRoofline);
    layer.linear.add(3.3, Footing::kExtrapolated);
    layer.experts.add(6.5, Footing::kInside);
    layer.experts.add(7.5, Footing::kRoofline);
    return price;
  }
  [[nodiscard]] Price experts(std::int64_t) const override { return {}; }
  [[nodiscard]] Price exchange(const GroupTokens&) const override { return {}; }
  [[nodiscard]] Price head(std::int64_t) const override { return {}; }
  [[nodiscard]] DecodeCurve decode_attention(std::size_t, std::int64_t) const override { return {{{0, 0, 0, Footing::kInside}}}; }
  [[nodiscard]] Price mixed_attention(const StepShape&) const override { return {}; }
  [[nodiscard]] Price policy(const PolicyOp&) const override { return {}; }
  [[nodiscard]] Price send(std::int64_t) const override { return {}; }
};

TEST(StepCostModel, SplitsAPriceThatItHasRounded) {
  const CostSetup setup = roofline_setup();
  StepCostModel model(std::make_shared<OddPrices>(), setup.model, setup.hardware, Parallel{});
  StepShape shape;
  shape.idle_rows = 1;
  StepCost step = model.step(shape);
  EXPECT_EQ(step.total.count(), 2 * (11 + 24));
  EXPECT_EQ(cell(step, CostPart::kExperts, Footing::kInside), 2 * 7);
  EXPECT_EQ(cell(step, CostPart::kLinear, Footing::kInside), 2 * (11 - 7));
  EXPECT_EQ(cell(step, CostPart::kExperts, Footing::kRoofline), 2 * 8);
  EXPECT_EQ(cell(step, CostPart::kLinear, Footing::kRoofline), 2 * (20 - 8));
  EXPECT_EQ(cell(step, CostPart::kLinear, Footing::kExtrapolated), 2 * (24 - 20));
}

// 8 tokens at a byte per picosecond; a router of 16 x 4.
TEST(StepCostModel, ExpertsAndRouterAreAPart) {
  StepCost step = make_cost_model(roofline_setup("", kTinyMoe))->step(decode_shape(8, 72));
  const std::int64_t experts = bytes(MoeExpertsShape{8, 16, 32, 4, 2, 1, 2, 16, true}), router = bytes(LinearShape{8, 4, 16, 2, 16});
  EXPECT_EQ(step.of(CostPart::kExperts).count(), 2 * (experts + router));
  EXPECT_EQ(step.of(CostPart::kExperts).count(), cell(step, CostPart::kExperts, Footing::kRoofline));
  EXPECT_GT(step.of(CostPart::kLinear).count(), 0);
}

RunSummary run(SimSetup setup, const std::vector<TraceRequest>& requests, bool fast_forward = true) {
  setup.fast_forward = fast_forward;
  return summary_of(setup, requests);
}

SimSetup with_host(const std::string& parameters) {
  SimSetup setup = basic_setup("vllm_v1", parameters);
  setup.make_cost_model = linear_cost({.host = Picoseconds{1'000'000}});
  return setup;
}

// Ten steps, 1 us before each of them, or, with two steps in flight, before the first alone.
TEST(HostTime, CountsWhereTheDeviceWaitsForIt) {
  const std::vector<TraceRequest> one{request_at(0, 100, 10)};
  const RunSummary serial = run(with_host("{async_scheduling: false}"), one), ahead = run(with_host("{}"), one);
  ASSERT_EQ(serial.steps, 10U);
  constexpr double kRounded = 2e-5;  // a run of 60 us ends at a whole nanosecond
  EXPECT_NEAR(host_share(serial.step_shares), 10e6 / to_ps(serial.duration).real(), kRounded);
  EXPECT_NEAR(host_share(ahead.step_shares), 1e6 / to_ps(ahead.duration).real(), kRounded);
  EXPECT_NEAR(sum_of(serial.step_shares), 1, 1e-12);
}

// A profile of one GPU without o_proj, on two GPUs whose link has no table: every basis occurs.
SimSetup with_every_basis(const TempFolder& folder, const std::string& parameters) {
  write_tiny_bundle(folder);
  std::string dense = "layer,tokens,time_us\n";
  for (const char* layer : {"act_fn", "down_proj", "embedding", "final_layernorm", "gate_up_proj", "layernorm", "qkv_proj", "rotary_emb"})
    dense += std::string(layer) + ",1,2\n" + layer + ",256,20\n";
  folder.write("tp1/dense.csv", dense);
  SimSetup setup = basic_setup("vllm_v1", parameters);
  const CostSetup cost = setup_of(tiny_experiment(folder, "bundle", ", missing: roofline, impossible: keep") + "parallel: {tp: 2}\n");
  setup.make_cost_model = [cost] { return make_cost_model(cost); };
  return setup;
}

TEST(StepShares, AreTheSameWithFastForwardOnAndOff) {
  const TempFolder folder;
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(request_at(0.3 * i, 20 + 40 * i, 200));
  for (const char* parameters : {"{}", "{async_scheduling: false}"}) {
    for (const SimSetup& setup : {with_host(parameters), with_every_basis(folder, parameters)}) {
      const RunSummary on = run(setup, requests), off = run(setup, requests, false);
      EXPECT_LT(on.events, off.events / 2) << parameters;
      EXPECT_EQ(on.step_shares, off.step_shares) << parameters;
      EXPECT_NEAR(sum_of(on.step_shares), 1, 1e-12) << parameters;
    }
  }
}

TEST(StepShares, HaveEveryBasis) {
  const TempFolder folder;
  const StepShares shares = run(with_every_basis(folder, "{}"), {request_at(0, 100, 50)}).step_shares;
  for (const Basis basis : {Basis::kMeasured, Basis::kExtrapolated, Basis::kRoofline})
    EXPECT_GT(share(shares, CostPart::kLinear, basis), 0) << static_cast<int>(basis);
  EXPECT_GT(share(shares, CostPart::kCollective, Basis::kDatasheet), 0);
  EXPECT_EQ(share(shares, CostPart::kExperts, Basis::kRoofline), 0);
}

}  // namespace
}  // namespace kvlab::testing
