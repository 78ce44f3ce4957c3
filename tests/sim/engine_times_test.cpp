#include "sim/cost/engine_times.h"

#include "base/text.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

TEST(VersionNumbers, CompareAsVersions) {
  EXPECT_EQ(version_numbers("0.19.0"), (std::vector<int>{0, 19}));
  EXPECT_LT(version_numbers("0.9.1"), version_numbers("0.24.0"));
  EXPECT_EQ(version_numbers("1.3.0rc20"), (std::vector<int>{1, 3}));
  EXPECT_TRUE(version_numbers("nightly-0.19").empty());
  EXPECT_TRUE(version_numbers("").empty());
}

struct EngineTimesTest : ::testing::Test {
  EngineTimesTest() {
    folder_.write(
        "tiny.yaml",
        "source: made up\nversions:\n"
        "  \"0.6\": {host: {overlaps: false, step_us: 1000, sequence_us: 50}, device: {}}\n"
        "  \"0.14\": {host: {overlaps: true}, device: {step_us: 7, sequence_us: 3, layer_us: 2, qk_norm_us: 20, experts_us: 4}}\n");
  }
  EngineTimes read(const std::string& engine) {
    Params p = Params::from_text("engine: " + engine);
    return read_engine_times(p, folder_.path());
  }
  TempFolder folder_;
};

TEST_F(EngineTimesTest, OfTheNewestVersionThatIsNotNewer) {
  const EngineTimes old = read("{tiny: {version: 0.12.0}}");
  EXPECT_FALSE(old.host.overlaps);
  EXPECT_EQ(std::tuple(old.host_of(4), old.engine.name, old.engine.version), std::tuple(to_ps(Span(1'200'000)), "tiny", "0.12.0"));
  EXPECT_THAT(old.basis, HasSubstr("tiny 0.12.0 (0.6 of "));
  for (const char* version : {"{tiny: {version: 0.14.0}}", "{tiny: {version: 0.31.0}}", "{tiny: {version: nightly}}", "tiny"})
    EXPECT_EQ(read(version).device.qk_norm, to_ps(Span(20'000))) << version;
}

TEST_F(EngineTimesTest, NoEngineTakesNoTime) {
  Params p = Params::from_text("{}");
  const EngineTimes none = read_engine_times(p, folder_.path());
  EXPECT_FALSE(none.is_known());
  EXPECT_EQ(none.host_of(100), Picoseconds{});
}

TEST_F(EngineTimesTest, Errors) {
  EXPECT_THAT(error_of([&] { read("{tiny: {version: 0.5.0}}"); }), HasSubstr("has no host times for tiny 0.5.0: the first are of 0.6"));
  EXPECT_THAT(error_of([&] { read("tyni"); }), HasSubstr("known: tiny"));
  EXPECT_THAT(error_of([&] { read("{tiny: {verison: 0.6}}"); }), HasSubstr("verison"));
}

// 2 layers; queries and keys are not normalized.
TEST_F(EngineTimesTest, OfAStep) {
  CostSetup setup = setup_of(roofline_experiment(folder_));
  const StepShape shape = rows_shape({10, 12});
  const Picoseconds without = make_cost_model(setup)->step(shape).total;
  setup.engine = read("{tiny: {version: 0.19.0}}");
  const auto cost = make_cost_model(setup);
  EXPECT_EQ(cost->step(shape).total - without, to_ps(Span(7'000 + 2 * 3'000 + 2 * 2'000)));
  EXPECT_EQ(cost->decode_span(shape).base.total, cost->step(shape).total);
  EXPECT_EQ(cost->host_time(shape), Picoseconds{});
  setup.engine = read("{tiny: {version: 0.6.0}}");
  EXPECT_EQ(make_cost_model(setup)->host_time(shape), to_ps(Span(1'100'000)));
}

TEST(ShippedEngines, AreRead) {
  for (const char* engine : {"vllm", "trtllm", "sglang"}) {
    const CostSetup setup = setup_of(std::string("model: llama-3.1-8b\nhardware: h100\nengine: ") + engine);
    EXPECT_TRUE(setup.engine.host.overlaps) << engine;
  }
  EXPECT_FALSE(setup_of("model: llama-3.1-8b\nhardware: h100\nengine: {vllm: {version: 0.12.0}}").engine.host.overlaps);
}

}  // namespace
}  // namespace kvlab
