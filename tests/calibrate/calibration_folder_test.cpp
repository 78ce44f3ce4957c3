// The folder that calibration writes: a profile to continue, to price steps with, or to refuse.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "app/cli.h"
#include "app/runs/sweep/progress.h"
#include "tests/calibrate/fake_meter.h"

namespace kvlab {
namespace {

TEST(Calibration, GoesOnWhereItWasCutOffAndMeasuresNothingTwice) {
  FakeMeter once(0.01);
  const Calibrated whole(once);
  for (const std::size_t cut : {std::size_t{1}, std::size_t{50}, whole.result.measurements - 3}) {
    FakeMeter meter(0.01);
    meter.stop_after = cut;
    Calibrated c(meter);
    EXPECT_FALSE(c.result.is_complete);
    EXPECT_EQ(c.result.measurements, cut);
    EXPECT_FALSE(std::filesystem::exists(c.plan.out + "/meta.yaml"));
    // The end came in the middle of a line.
    std::ofstream(c.plan.out + "/measurements.csv", std::ios::app) << "qkv_proj,16,0,fit,12";
    meter.stop_after = 0;
    const CalibrationResult again = c.run(meter);
    EXPECT_EQ(std::tuple(again.is_complete, again.measurements), std::tuple(true, whole.result.measurements));
    EXPECT_EQ(meter.measurements, meter.measured.size());
    for (const char* file : {"tp1/qkv_proj.csv", "tp1/attention.csv", "tp1/policy.csv", "heldout.csv", "meta.yaml"})
      EXPECT_EQ(c.text(file), whole.text(file)) << file;
  }
}

TEST(Calibration, MoreTimeGoesOnFromAFinishedProfile) {
  FakeMeter meter;
  Calibrated c(meter);
  const std::string before = profile_hash(c.profile());
  c.plan.seconds = 2;
  const CalibrationResult again = c.run(meter);
  EXPECT_GT(again.measurements, c.result.measurements);
  EXPECT_NE(profile_hash(c.profile()), before);
  EXPECT_LT(again.errors.back().p95_frac, c.result.errors.back().p95_frac);
}

// Serving on a CPU keeps codes alone between steps.
TEST(Calibration, AProfileOfACpuSaysThatPackedKvIsDecodedAnew) {
  FakeMeter cpu, gpu;
  gpu.kind = DeviceKind::kGpu;
  EXPECT_EQ(Calibrated(cpu).profile().kv_reads, KvReads::kUnpacked);
  EXPECT_EQ(Calibrated(gpu).profile().kv_reads, KvReads::kStored);
}

TEST(Calibration, AFolderOfAnotherDeviceModelOrSeedIsRefused) {
  FakeMeter meter, other;
  Calibrated c(meter);
  other.name = "another card";
  EXPECT_THAT(c.error(other), testing::HasSubstr("holds measurements of device 'fake', not 'another card'; choose another --out"));
  EXPECT_THAT(c.error(meter, "qwen3-8b"), testing::HasSubstr("of model 'probe', not 'qwen3-8b'"));
  c.plan.seed = 2;
  EXPECT_THAT(c.error(meter), testing::HasSubstr("of seed '1', not '2'"));
  c.plan.out = c.folder.path();
  EXPECT_THAT(c.error(meter), testing::HasSubstr("exists and holds no calibration"));
  // Under the same names they hold times of other launches.
  FakeMeter gpu;
  Calibrated of_cpu(meter);
  EXPECT_EQ(of_cpu.error(meter), "no error");
  gpu.kind = DeviceKind::kGpu;
  EXPECT_THAT(of_cpu.error(gpu), testing::HasSubstr("of operations '', not 'as the engine launches them'"));
}

TEST(Calibration, AFaultyMeasurementIsNamedWithItsLine) {
  FakeMeter meter;
  Calibrated c(meter);
  std::ofstream(c.plan.out + "/measurements.csv", std::ios::app) << "qkv_proj,17,0,maybe,12,0,0,0,0,0,0,1\n";
  EXPECT_THAT(c.error(meter), testing::HasSubstr("'role' = 'maybe' is neither fit nor heldout"));
}

TEST(Calibration, ATableWithoutAKernelIsReportedAndTheRooflineFillsIn) {
  FakeMeter meter;
  meter.lacks = "sampler";
  const Calibrated c(meter);
  EXPECT_THAT(c.result.missing, testing::ElementsAre("sampler"));
  EXPECT_THAT(error_of([&] { c.setup(); }), testing::HasSubstr("no table of sampler"));
  EXPECT_NO_THROW(c.setup(", missing: roofline"));
}

// Attention is timed without the write of new keys and values: no table of that must not mean that it costs nothing.
TEST(Calibration, WritingNewKeysIsNeverForgotten) {
  FakeMeter meter;
  meter.lacks = "append_kv";
  const Calibrated c(meter);
  EXPECT_THAT(error_of([&] { c.setup(); }), testing::HasSubstr("no table of append_kv"));
  FakeMeter whole;
  const Calibrated with(whole);
  StepShape shape;
  shape.decodes = 4, shape.decode_kv_tokens = 400, shape.decode_kv_max = shape.decode_kv_min = 100, shape.decode_kv_squares = 40'000;
  const StepCost filled = make_cost_model(c.setup(", missing: roofline"))->step(shape);
  const StepCost measured = make_cost_model(with.setup())->step(shape);
  const double append = 8 * (4e-5 + 3e-7 * 4);
  EXPECT_NEAR(to_s(measured.of(CostPart::kLinear) - filled.of(CostPart::kLinear)), append, 0.1 * append);
  EXPECT_GT(filled.of(Footing::kRoofline), Picoseconds{}) << "the roofline's share";
}

TEST(Calibration, TheProfilePricesStepsAndPolicyOperations) {
  FakeMeter meter;
  const Calibrated c(meter);
  const CostSetup setup = c.setup();
  EXPECT_EQ(setup.model.name, "probe");
  EXPECT_EQ(setup.model.dtype, Dtype::kFp32) << "the CPU computes in float32";
  EXPECT_EQ(setup.profile_date, "2026-01-02");
  EXPECT_THAT(setup.profile->options.at("heldout_all"), testing::HasSubstr("median"));
  // 16 decode rows of 1 + 511 tokens: 8 layers of 4e-5 + 3e-7 * 16 for each small operation, 1 ms for each product.
  StepShape shape;
  shape.decodes = 16, shape.decode_kv_tokens = 16 * 511, shape.decode_kv_max = shape.decode_kv_min = 511,
  shape.decode_kv_squares = 16 * 511 * 511, shape.head_rows = 16;
  const StepCost step = make_cost_model(setup)->step(shape);
  const double small = 4e-5 + 3e-7 * 16;
  EXPECT_NEAR(to_s(step.of(CostPart::kLinear)), 8 * (5 * small + 4e-3) + 2 * small, 1e-9);
  EXPECT_NEAR(to_s(step.of(CostPart::kAttention)), 8 * (2e-5 + 2e-8 * 16 * 512), 1e-7);
  const Price top_k = setup.prices->policy({"top_k", 1, 256 * 1024, 0});
  EXPECT_NEAR(top_k.total() * 1e-12, 1e-5 + 1e-8 * 1024, 1e-11);
  EXPECT_GT(top_k.ps[0] + top_k.ps[1], 0);
}

TEST(Calibration, AVerdictNamesTheGoalsThatWereMissed) {
  const auto failure = [](double median, double p95) {
    const TempFolder folder;
    return calibration_failure({{"qkv_proj", 4, 0.5, 0.6}, {"all", 117, median, p95}}, Measurements(folder.path() + "/m", {}));
  };
  EXPECT_EQ(failure(0.03, 0.10), "");
  EXPECT_EQ(failure(0.2037, 0.05), "held-out error 20.4 % in the median (goal 3 %)");
  EXPECT_EQ(failure(0.2037, 0.6276), "held-out error 20.4 % in the median (goal 3 %), held-out error 62.8 % in the P95 (goal 10 %)");
  FakeMeter even, busy;
  EXPECT_EQ(Calibrated(even, 2).profile().options.contains("calibration_failure"), !Calibrated(even, 2).result.failure.empty());
  busy.spread = 0.8;
  EXPECT_THAT(Calibrated(busy).result.failure, testing::HasSubstr("spread of samples 80 % in the P90 (limit 50 %)"));
}

// Such a profile can be used; every run with it says what it is.
TEST(Calibration, ARunWithAProfileThatFailedSaysSo) {
  FakeMeter busy;
  busy.spread = 0.8;
  const Calibrated c(busy);
  EXPECT_THAT(c.text("meta.yaml"), testing::HasSubstr("calibration_failure: "));
  const std::string file = c.folder.path() + "/run.yaml", out = c.folder.path() + "/out";
  std::ofstream(file) << "trace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 1}}, prompt_tokens: {fixed: {value: 30}}, "
                         "output_tokens: {fixed: {value: 3}}}}\nscheduler: vllm_v1\nmemory: {num_blocks: 100}\n"
                      << "profile: {kvlab: {path: " << c.plan.out << "}}\n";
  std::ostringstream output, error;
  EXPECT_EQ(run_cli({"run", file, "--out", out}, output, error), 0) << error.str();
  EXPECT_THAT(output.str(), testing::HasSubstr("the profile FAILED its calibration: " + c.result.failure));
}

TEST(ServingProgress, SaysTheEstimateAndEachQuarterTenSecondsApart) {
  std::string lines;
  const auto now = ServingProgress::Clock::now();
  ServingProgress progress([&](const std::string& line) { lines += line + "\n"; }, "ab", 95, 8, true);
  for (int i = 1; i <= 8; ++i) progress.request_done(now + std::chrono::seconds(i < 5 ? 11 + i : 30));
  EXPECT_THAT(lines, testing::MatchesRegex("run ab: 8 requests on the engine, about 95 s by the profile\nrun ab: 2 of 8 requests after "
                                           "1[23] s\nrun ab: 6 of 8 requests after [23]. s\n"));
}

// Times that no card can reach: a wrong kernel or a wrong clock. The measurements are kept for inspection.
TEST(Calibration, WhatTheDatasheetForbidsIsNotWritten) {
  FakeMeter meter, fast;
  Calibrated c(meter);
  std::filesystem::remove_all(c.plan.out);
  c.plan.hardware = c.folder.write("card.yaml", kTinyCard);
  fast.speed = 1e-6;
  EXPECT_THAT(c.error(fast), testing::HasSubstr("the measurements are kept in measurements.csv, no profile was written"));
  EXPECT_FALSE(std::filesystem::exists(c.plan.out + "/meta.yaml"));
  EXPECT_TRUE(std::filesystem::exists(c.plan.out + "/measurements.csv"));
}

TEST(CalibrationErrors, AreTheMedianAndThe95thPercentileOfEachTable) {
  std::vector<HeldOut> held_out;
  for (int i = 1; i <= 21; ++i) held_out.push_back({"a", {i, 0}, 100, 100.0 + i, Footing::kInterpolated});
  held_out.push_back({"b", {1, 0}, 100, 50, Footing::kInterpolated});
  const auto errors = errors_by_table(held_out);
  ASSERT_EQ(errors.size(), 3U);
  EXPECT_EQ(errors[0].points, 21U);
  EXPECT_NEAR(errors[0].median_frac, 0.11, 1e-12);
  EXPECT_NEAR(errors[0].p95_frac, 0.20, 1e-12);
  EXPECT_NEAR(errors[1].median_frac, 0.5, 1e-12);
  EXPECT_EQ(std::tuple(errors[2].table, errors[2].points), std::tuple("all", 22U));
}

TEST(CalibrationTables, RefuseModelsWhoseOperationsAreNotTimed) {
  const CalibrationLimits limits;
  for (const auto& [model, why] : {std::pair{"mixtral-8x7b", "has experts"}, std::pair{"opt-6.7b", "has learned positions"}})
    EXPECT_THAT(error_of([&, name = model] { calibration_tables(load_model_spec(name, kModels), DeviceKind::kGpu, limits); }),
                testing::HasSubstr(why));
  EXPECT_NO_THROW(calibration_tables(load_model_spec("qwen3-8b", kModels), DeviceKind::kGpu, limits));
}

TEST(KnownHardware, IsFoundByTheDriversNameAndTheMemory) {
  const std::tuple<const char*, double, const char*> cards[] = {{"NVIDIA H100 80GB HBM3", 79.1, "h100"},
                                                                {"NVIDIA H200", 139.8, "h200"},
                                                                {"NVIDIA A100-SXM4-80GB", 79.2, "a100-80gb"},
                                                                {"NVIDIA A100-PCIE-40GB", 39.4, "a100-pcie-40gb"},
                                                                {"NVIDIA GeForce RTX 4090", 23.6, "rtx4090"},
                                                                {"Tesla T4", 14.6, "t4"},
                                                                {"NVIDIA L4", 22.0, "l4"},
                                                                {"NVIDIA B200", 178.4, "b200"},
                                                                {"NVIDIA GeForce RTX 5060", 7.6, ""}};
  for (const auto& [name, gib, card] : cards)
    EXPECT_EQ(known_hardware(name, static_cast<std::int64_t>(gib * 1024 * 1024 * 1024)), card) << name;
}

}  // namespace
}  // namespace kvlab
