// Step time by part and basis: sums and splits of costs by hand, waits for the host, and the same with fast-forward on and off.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/random.h"
#include "kernels/model/layer/layer.h"
#include "serving/link.h"
#include "sim/cost/step_cost_model.h"
#include "sim/cost/step_sums.h"
#include "sim/cost_totals.h"
#include "tests/sim/cost_support.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

std::int64_t cell(const StepCost& cost, CostPart part, Footing footing) {
  return cost.times.row(part)[static_cast<std::size_t>(footing)].count();
}

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

// A model of which PeakTime reads peaks and stages alone.
class Peaks final : public StubCost {
 public:
  Peaks(double flops, double bytes_per_s, int stages = 1) : flops_(flops), bytes_per_s_(bytes_per_s), stages_(stages) {}
  [[nodiscard]] int num_stages() const override { return stages_; }
  [[nodiscard]] double peak_flops() const override { return flops_; }
  [[nodiscard]] double peak_bytes_per_s() const override { return bytes_per_s_; }

 private:
  double flops_, bytes_per_s_;
  int stages_;
};

StepCost step_of(std::int64_t flops, std::int64_t bytes, std::int64_t ps) {
  StepCost cost;
  cost.flops = flops;
  cost.bytes = bytes;
  cost.total = Picoseconds(ps);
  return cost;
}

constexpr std::int64_t kPsPerMs = 1'000'000'000;

TEST(PeakTime, TheLongerOfFlopsAndBytesUpToTheStep) {
  for (const int stages : {1, 2}) {
    PeakTime time(Peaks(1e9, 2e9, stages));
    time.add(step_of(4'000'000, 2'000'000, 10 * kPsPerMs), {}, 1);  // 4 ms of FLOPs, 1 ms of bytes
    time.add(step_of(1'000'000, 6'000'000, 10 * kPsPerMs), {}, 1);  // 1 ms, 3 ms
    time.add(step_of(50'000'000, 0, 10 * kPsPerMs), {}, 1);         // above the datasheet: the whole step, in which a stage is busy once
    EXPECT_DOUBLE_EQ(time.seconds(), (4 + 3 + 10.0 / stages) * 1e-3);
  }
  PeakTime none(Peaks(0, 2e9));
  none.add(step_of(1000, 1000, 1000), {}, 1);
  EXPECT_EQ(none.seconds(), 0) << "no peak, no share of it";
}

// Along a stretch each of the three may take over from another.
TEST(PeakTime, AStretchIsTheSumOfItsSteps) {
  const Peaks peaks(1e9, 2e9);
  std::uint64_t changes = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    const auto draw = [&](std::uint64_t step, std::uint64_t most) {
      return static_cast<std::int64_t>(Draw{seed, Purpose::kTest, 0, step, 0}.below(most));
    };
    const std::int64_t n = 1 + draw(0, 300);
    const StepCost base = step_of(draw(1, 1'000'000), draw(2, 2'000'000), draw(3, kPsPerMs));
    const StepCost slope =
        step_of((draw(4, 1'000'000) - base.flops) / n, (draw(5, 2'000'000) - base.bytes) / n, (draw(6, kPsPerMs) - base.total.count()) / n);
    PeakTime whole(peaks), single(peaks), parts(peaks);
    double sum = 0;
    int before = -1;
    for (std::int64_t i = 0; i < n; ++i) {
      const StepCost one = step_of(base.flops + i * slope.flops, base.bytes + i * slope.bytes, (base.total + i * slope.total).count());
      single.add(one, {}, 1);
      const double flops_s = static_cast<double>(one.flops) / 1e9, bytes_s = static_cast<double>(one.bytes) / 2e9, s = to_s(one.total);
      sum += std::min(s, std::max(flops_s, bytes_s));
      const int bound = s < std::max(flops_s, bytes_s) ? 2 : flops_s >= bytes_s ? 0 : 1;
      changes += before >= 0 && bound != before ? 1 : 0;
      before = bound;
    }
    whole.add(base, slope, n);
    const std::int64_t cut = draw(7, static_cast<std::uint64_t>(n));
    PeakTime rest(peaks);
    parts.add(base, slope, cut);
    rest.add(step_of(base.flops + cut * slope.flops, base.bytes + cut * slope.bytes, (base.total + cut * slope.total).count()), slope,
             n - cut);
    parts.merge(rest);
    ASSERT_EQ(whole.seconds(), single.seconds()) << "seed " << seed;
    ASSERT_EQ(whole.seconds(), parts.seconds()) << "seed " << seed;
    ASSERT_NEAR(whole.seconds(), sum, 1e-12 * static_cast<double>(n)) << "seed " << seed;
  }
  EXPECT_GT(changes, 1000U);
}

// One request: a prompt of 10 tokens and two decode steps of one. LinearCost has 1000 FLOPs per token, 7 bytes per cached token and peaks
// of 1e12: 10 ns for the prompt, 1 ns for each decode step, whose bytes take 70 and 77 ps.
TEST(PeakTime, OfATinyRun) {
  const RunSummary summary = summary_of(basic_setup("sarathi"), {request_at(0, 10, 3)});
  EXPECT_DOUBLE_EQ(summary.peak_s, 12e-9);
  EXPECT_EQ(summary.output_tokens, 3);
}

// The ends of simulated time: 2^63 ps, 106 days.

constexpr Picoseconds kDay{86'400'000'000'000'000};

SimSetup setup_with_steps_of(Picoseconds step, const std::string& scheduler = "vllm_v1") {
  SimSetup setup = basic_setup(scheduler);
  setup.timeline_interval = Span{0};
  setup.make_cost_model = linear_cost({.step = step});
  return setup;
}

std::string error_of_run(const SimSetup& setup, std::int32_t output_tokens) {
  return error_of([&] { summary_of(setup, {request_at(0, 40, output_tokens), request_at(5, 40, output_tokens)}); });
}

TEST(Clock, EndsTheRunWithTheTimeAndWhatToCheck) {
  for (const bool fast_forward : {true, false})
    for (const char* scheduler : {"vllm_v1", "sarathi", "static"}) {
      SimSetup setup = setup_with_steps_of(10 * kDay, scheduler);
      setup.fast_forward = fast_forward;
      EXPECT_EQ(error_of_run(setup, 4), "no error") << scheduler;
      const std::string error = error_of_run(setup, 20);
      EXPECT_THAT(error, HasSubstr("the simulated clock ends after 106 days")) << scheduler;
      EXPECT_THAT(error, HasSubstr("s of simulated time a step ends later than that; check the rates")) << scheduler;
    }
}

TEST(Clock, AStopRuleEndsTheRunBefore) {
  SimSetup setup = setup_with_steps_of(10 * kDay);
  setup.stop.after_time = to_span(50 * kDay);
  EXPECT_EQ(error_of_run(setup, 1000), "no error");
}

TEST(Clock, PipelineStagesAndCopies) {
  SimSetup setup = basic_setup("sarathi");
  setup.make_cost_model = linear_cost({.stages = {60 * kDay, 60 * kDay}});
  EXPECT_THAT(error_of_run(setup, 2), HasSubstr("a step ends later than that"));
  Link slow(LinkSetup{1, Span{0}});
  EXPECT_THAT(error_of([&] { slow.transfer({}, std::int64_t{1} << 40, 1); }), HasSubstr("memory.swap_bytes_per_s"));
}

// A rate in tera-FLOP/s where FLOP/s are meant ends as an error or as a remark, whatever the rate.
TEST(Clock, WrongUnitsOfARateAreNamed) {
  const TempFolder folder;
  const auto card = [&](const std::string& line) {
    return folder.write("card.yaml",
                        "source: made up\nmemory_bytes: 48305799168\nmemory_bandwidth_bytes_per_s: 8.64e11\nfp16_flops: "
                        "3.62e14\npcie_bytes_per_s: 3.15e10\n" +
                            line + "\n");
  };
  for (const char* key : {"bf16_flops", "fp8_flops", "int8_ops_per_s"}) {
    const auto error = [&](const std::string& value) {
      return error_of([&] { load_hardware_spec(card(std::string(key) + ": " + value), ""); });
    };
    EXPECT_THAT(error("362"), HasSubstr(std::string("'") + key + "' = 362 is below 1e+09")) << key;
    EXPECT_EQ(error("0"), "no error");
    EXPECT_EQ(error("3.62e14"), "no error");
  }
  const auto remark = [&](const std::string& line) {
    const std::vector<std::string> all = hardware_remarks(load_hardware_spec(card(line), ""));
    return all.empty() ? "" : all.front();
  };
  EXPECT_EQ(remark("bf16_flops: 3.62e14"), "");
  EXPECT_EQ(remark("bf16_flops: 3.62e12"), "bf16_flops = 3.62e+12 is 100 times less than fp16_flops = 3.62e+14");
  EXPECT_THAT(remark("fp8_flops: 3.62e17"), HasSubstr("fp8_flops"));
  EXPECT_THAT(remark("nvlink_bytes_per_s: 1e8"), HasSubstr("nvlink_bytes_per_s"));
  EXPECT_THAT(remark("launch_ns: 2e6"), HasSubstr("launch_ns"));
  const HardwareSpec slow = load_hardware_spec(card("bf16_flops: 1e9"), "");
  EXPECT_THAT(likely_cause_of(slow), HasSubstr("card.yaml: bf16_flops = 1e+09"));
}

// Steps that 64-bit FLOPs or picoseconds do not hold.
TEST(Clock, AStepsCostIsChecked) {
  const auto cost =
      make_cost_model(roofline_setup("", kTinyModel,
                                     "source: made up\nmemory_bytes: 16777216\nmemory_bandwidth_bytes_per_s: 1e9\nfp16_flops: 1e9\n"
                                     "pcie_bytes_per_s: 1e9\nflops_frac: 0.01\n"));
  const auto error = [&](std::int32_t tokens, std::int32_t cached) {
    return error_of([&] { EXPECT_GT(prompt_cost(*cost, {tokens, cached}).total, Picoseconds{}); });
  };
  EXPECT_EQ(error(1 << 20, 0), "no error");
  EXPECT_EQ(error(1 << 27, 0), "one step takes longer than that");
  EXPECT_THAT(error(1 << 30, 1 << 30), HasSubstr("FLOPs"));
}

}  // namespace
}  // namespace kvlab::testing
