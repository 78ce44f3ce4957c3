// The ends of simulated time: 2^63 ps, 106 days.
#include "serving/link.h"
#include "tests/error_of.h"
#include "tests/sim/cost_support.h"
#include "tests/sim/sim_support.h"

namespace kvlab::testing {
namespace {

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
