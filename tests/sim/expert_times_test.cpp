// The experts of gpt-oss-120b on the shipped cards, compared with published kernel times and with a published throughput of prompts.

#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

StepCost prompt_step(const std::string& card, int tp, std::int32_t tokens) {
  const std::string experiment = "model: gpt-oss-120b\nhardware: " + card + "\nparallel: {tp: " + std::to_string(tp) + "}\n";
  const PrefillPiece piece{tokens, 0};
  StepShape shape;
  shape.prefills = {&piece, 1};
  return make_cost_model(setup_of(experiment))->step(shape);
}

constexpr double kMsInPs = 1e9;
constexpr int kLayers = 36;

// Milliseconds of a layer's experts cut over 1, 2, 4 and 8 GPUs (NVIDIA aisimulate, Apache-2.0: vllm 0.24.0, w4a16_mxfp4 of gpt-oss,
// power_law_1.2).
TEST(ExpertTimes, PromptsOfGptOssAreNearTheKernelTables) {
  struct Row {
    const char* card;
    int tp;
    double ms;
  };
  for (const Row& row :
       {Row{"h100", 1, 3.954}, Row{"h100", 2, 2.217}, Row{"h100", 4, 1.253}, Row{"h100", 8, 0.790}, Row{"h200", 1, 4.021},
        Row{"h200", 4, 1.228}, Row{"l40s", 1, 11.147}, Row{"l40s", 4, 3.326}, Row{"rtxpro6000", 1, 7.331}, Row{"rtxpro6000", 4, 2.326}}) {
    const double ms = static_cast<double>(prompt_step(row.card, row.tp, 8192).of(CostPart::kExperts).count()) / kMsInPs / kLayers;
    EXPECT_NEAR(ms / row.ms, 1, 0.25) << row.card << ", tp " << row.tp << ": " << ms << " ms";
  }
}

// Prompts of 5,000 tokens without output on H100 (vLLM 0.11, vllm bench serve): 4.75 a second on one GPU, 7.67 on two.
TEST(ExpertTimes, ASecondGpuMakesPromptsFasterByTheMeasuredRatio) {
  constexpr double kMeasured = 7.67 / 4.75;
  const auto one = static_cast<double>(prompt_step("h100", 1, 8192).total.count());
  const auto two = static_cast<double>(prompt_step("h100", 2, 8192).total.count());
  EXPECT_NEAR(one / two / kMeasured, 1, 0.05) << one / two;
}

// Hidden values cross the memory however the experts are cut, so that four times the GPUs never take a quarter of the time.
TEST(ExpertTimes, CutExpertsDoNotScaleAllTheWay) {
  for (const char* card : {"h100", "h200", "b200", "b300", "gb200", "a100-80gb", "l40s", "rtxpro6000"}) {
    const auto one = static_cast<double>(prompt_step(card, 1, 8192).of(CostPart::kExperts).count());
    const auto four = static_cast<double>(prompt_step(card, 4, 8192).of(CostPart::kExperts).count());
    EXPECT_GT(one / four, 2) << card;
    EXPECT_LT(one / four, 3.8) << card;
  }
}

}  // namespace
}  // namespace kvlab
