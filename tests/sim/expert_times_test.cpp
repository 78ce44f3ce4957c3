// The experts of gpt-oss-120b on the shipped cards, compared with published kernel times and with a published throughput of prompts.

#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

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
}  // namespace kvlab
