// Calibration of a device whose times are made up: the tables, their stated error, and what happens when it is cut off.
#include "app/calibrate/calibration.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "app/calibrate/profile_folder.h"
#include "app/calibrate/refine.h"
#include "base/hash.h"
#include "sim/cost/make_cost_model.h"
#include "tests/bench/fake_device.h"
#include "tests/sim/cost_support.h"

namespace kvlab {

namespace {

using TableKind = CalibrationTable::Kind;
const std::string kModels = KVLAB_SOURCE_DIR "/profiles/models";

// Seconds of a made-up device. Matrix products are flat until 100 rows and then grow; attention is a sum of products; a policy's
// operation is its launch and its bytes.
double true_seconds(const CalibrationTable& t, const CalibrationPoint& at) {
  const auto a = static_cast<double>(at[0]), b = static_cast<double>(at[1]);
  switch (t.kind) {
    case TableKind::kOp:
      return t.family.starts_with("linear") ? 1e-3 * std::max(1.0, a / 100) : 4e-5 + 3e-7 * a;
    case TableKind::kPrefill:
      return 5e-5 + 1e-5 * a + 1e-8 * a * (b + a / 2);
    case TableKind::kDecode:
      return 2e-5 + 2e-8 * a * b;
    default:
      return 1e-5 + 1e-8 * a;
  }
}

class FakeMeter final : public Meter {
 public:
  explicit FakeMeter(double noise = 0) : noise_(noise) {}
  [[nodiscard]] DeviceFacts facts() override {
    DeviceFacts facts;
    facts.name = name, facts.kind = kind, facts.memory_bytes = std::int64_t{8} << 30, facts.cache_bytes = 1 << 20,
    facts.copy_bytes_per_s = copy_bytes_per_s, facts.gemm_flops_per_s = 3 * copy_bytes_per_s;
    return facts;
  }
  [[nodiscard]] bool can_measure(const CalibrationTable& table) const override { return table.name != lacks; }
  Measured measure(const CalibrationTable& table, const CalibrationPoint& at, double) override {
    ++measured[{table.name, at}];
    ++measurements;
    if (stop != nullptr && ((stop_after > 0 && measured.size() >= stop_after) || measurements == stop_at)) *stop = true;
    const bool is_slow = measurements > slow_after && measurements <= slow_until;
    // Noise is the same whenever a point is measured.
    const std::uint64_t draw = hash_combine(hash_combine(std::hash<std::string>()(table.name), static_cast<std::uint64_t>(at[0])),
                                            static_cast<std::uint64_t>(at[1]));
    const double unit = static_cast<double>(draw >> 11) * 0x1p-53 * 2 - 1;
    const bool is_stuck = table.name == stuck && at[0] >= stuck_from && measured[{table.name, at}] == 1;
    const double seconds = true_seconds(table, at) * (1 + noise_ * unit) * (is_slow ? 2 : 1) * (is_stuck ? 1e4 : 1) * speed;
    const bool is_stalled = stalled_every > 0 && measurements % stalled_every == 0;
    return {seconds, std::max(noise_, spread),
            2,       at[0],
            at[0],   256 * at[0],
            at[0],   (is_stalled ? 5.0 : 1.0) * (table.name == uneven ? 1.25 : 1.0)};
  }
  std::vector<RecipeCalls> measure_recipe(const Recipe& recipe, const RecipeSteps&, const std::atomic<bool>&) override {
    recipes.push_back(recipe.name);
    return recipe_calls;
  }
  std::vector<RecipeCalls> recipe_calls;  // what any recipe's operations take
  std::vector<std::string> recipes;       // that were measured
  std::string name = "fake", lacks;
  DeviceKind kind = DeviceKind::kCpu;
  std::string uneven;  // the table whose samples take a quarter longer in the mean than in the median
  std::atomic<bool>* stop = nullptr;
  std::string stuck;  // this table's points from stuck_from on take ten thousand times as long the first time
  std::int64_t stuck_from = 0;
  std::size_t stop_after = 0, stop_at = 0;  // different points; measurements
  double spread = 0;
  double speed = 1, copy_bytes_per_s = 1e11;
  std::size_t stalled_every = 0;  // the samples of every so many measurements are five times their median in the mean
  std::size_t measurements = 0, slow_after = 0, slow_until = 0;      // between these two everything takes twice as long
  std::map<std::pair<std::string, CalibrationPoint>, int> measured;  // how often

 private:
  double noise_;
};

struct Calibrated {
  explicit Calibrated(FakeMeter& meter, double seconds, std::uint64_t seed = 1) : plan(plan_for(seconds, seed)) { result = run(meter); }
  CalibrationResult run(FakeMeter& meter, const std::string& model = "probe") {
    std::atomic<bool> stop = false;
    if (meter.stop_after > 0) meter.stop = &stop;
    std::ostringstream log;
    CalibrationResult r = calibrate(load_model_spec(model, kModels), meter, plan, stop, log);
    meter.stop = nullptr;
    return r;
  }
  [[nodiscard]] CalibrationPlan plan_for(double seconds, std::uint64_t seed) const {
    CalibrationPlan p;
    p.seconds = seconds, p.seed = seed, p.out = folder.path() + "/profile", p.source = "test", p.measured = "2026-01-02";
    p.limits = default_limits(load_model_spec("probe", kModels), DeviceKind::kCpu, std::int64_t{8} << 30);
    return p;
  }
  [[nodiscard]] Profile profile() const { return read_kvlab_profile(plan.out, 1); }
  [[nodiscard]] std::string text(const std::string& file) const {
    std::ifstream stream(plan.out + "/" + file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }
  TempFolder folder;
  CalibrationPlan plan;
  CalibrationResult result;
};

double p95(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() * 95 / 100];
}
double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Relative errors of the profile's tables at points of our own, between those that calibration may have measured.
std::vector<double> errors_elsewhere(const Calibrated& c) {
  const Profile p = c.profile();
  std::vector<double> errors;
  for (const CalibrationTable& t : calibration_tables(load_model_spec("probe", kModels), DeviceKind::kCpu, c.plan.limits)) {
    for (const CalibrationPoint& at : held_out_points(t, 777)) {
      double predicted = 0;
      if (t.kind == TableKind::kOp) {
        for (const ProfileOp& op : p.ops)
          if (op.name == t.name) predicted = time_of_op(op, at[0], p.tile_rows).ps;
      } else if (t.kind == TableKind::kPrefill) {
        predicted = p.attention.at(std::array{static_cast<double>(at[0]), static_cast<double>(at[1]), 0.0, 0.0}).ps;
      } else if (t.kind == TableKind::kDecode) {
        predicted = p.attention.at(std::array{0.0, 0.0, static_cast<double>(at[0]), static_cast<double>(at[1])}).ps;
      } else {
        predicted = p.policy.at(t.name, 256.0 * static_cast<double>(at[0]), 0)->ps;
      }
      errors.push_back(std::abs(predicted * 1e-12 / true_seconds(t, at) - 1));
    }
  }
  return errors;
}

// What an operand has to wait for in a step, the model's weights and the KV of the sequences, passes through the cache between two uses.
TEST(Calibrate, StreamedOperandsAreMetAgainAfterAWholeStep) {
  const ModelSpec probe = load_model_spec("probe", kModels);
  const CalibrationLimits limits = default_limits(probe, DeviceKind::kCpu, std::int64_t{8} << 30);
  constexpr std::int64_t kWeights = 4 * (8 * (384 * (2 * 512 + 2 * 128) + 3 * 384 * 768) + 264 * 384), kToken = 4 * 8 * 2 * 128;
  for (const CalibrationTable& t : calibration_tables(probe, DeviceKind::kCpu, limits)) {
    if (t.name == "down_proj") {
      EXPECT_EQ(copied_bytes(t, {1, 0}), kWeights + 512 * kToken);
      EXPECT_EQ(copied_bytes(t, {2000, 0}), kWeights + 64 * 512 * kToken);  // of a prompt, not of 2,000 sequences
    } else if (t.name == "attention_decode") {
      EXPECT_EQ(copied_bytes(t, {4, 2048}), kWeights + 4 * 2048 * kToken);
    } else if (t.name == "act_fn") {
      EXPECT_GT(copied_bytes(t, {1, 0}), std::int64_t{1} << 40);  // as many as evict the cache
    }
  }
}

// A layer's activations are met again when all others of the pass have passed through the cache.
TEST(Calibrate, ActivationsAreMetAgainAfterAPass) {
  const ModelSpec probe = load_model_spec("probe", kModels);
  const CalibrationLimits limits = default_limits(probe, DeviceKind::kCpu, std::int64_t{8} << 30);
  for (const CalibrationTable& t : calibration_tables(probe, DeviceKind::kCpu, limits)) {
    const bool is_policy = t.kind == TableKind::kPolicy;
    EXPECT_EQ(activation_bytes(t, probe, {100, 7}), is_policy ? 0 : 4 * 100 * (3 * 384 + 2 * (512 + 128) + 2 * 768)) << t.name;
  }
}

// Weights rotate through all that the model has, also where that is many times the cache; an eighth of the memory is the most.
TEST(Calibrate, WeightsRotateThroughTheModelsSize) {
  const ModelSpec model = load_model_spec("llama-100m", kModels);
  for (const CalibrationTable& t :
       calibration_tables(model, DeviceKind::kCpu, default_limits(model, DeviceKind::kCpu, std::int64_t{8} << 30))) {
    const auto bytes_with = [&](std::int64_t cache_mib, std::int64_t memory_mib) {
      return rotation_at(t, model, {1, 0}, FakeDevice(cache_mib << 20, memory_mib << 20)).bytes;
    };
    if (t.name == "down_proj") {
      EXPECT_EQ(bytes_with(32, 24 << 10), t.streamed_bytes);
      EXPECT_EQ(bytes_with(1024, 24 << 10), copied_bytes(t, {1, 0})) << "with the KV of a sequence";
      EXPECT_EQ(bytes_with(32, 1024), std::int64_t{128} << 20);
      EXPECT_EQ(bytes_with(1024, 1024), std::int64_t{128} << 20) << "however large the cache";
    } else if (t.name == "act_fn") {
      EXPECT_EQ(bytes_with(32, 24 << 10), std::int64_t{96} << 20);
    }
    EXPECT_EQ(rotation_at(t, model, {1, 0}, FakeDevice(std::int64_t{32} << 20, std::int64_t{1} << 30)).activation_bytes,
              activation_bytes(t, model, {1, 0}));
  }
}

TEST(Calibration, RecoversTheDevicesTimesWithinItsStatedError) {
  FakeMeter meter(0.005);
  const Calibrated c(meter, 20);
  ASSERT_TRUE(c.result.is_complete);
  const HeldOutError all = c.result.errors.back();
  EXPECT_EQ(all.table, "all");
  EXPECT_LE(all.median_frac, 0.03);
  EXPECT_LE(all.p95_frac, 0.10);
  // The points that it states its error for stand for others.
  const std::vector<double> elsewhere = errors_elsewhere(c);
  EXPECT_LE(median(elsewhere), 0.03);
  EXPECT_LE(p95(elsewhere), 0.10);
  EXPECT_NEAR(median(elsewhere), all.median_frac, 0.01);
  for (const HeldOutError& e : c.result.errors) EXPECT_GE(e.points, 4U) << e.table;
}

TEST(Calibration, RefiningMakesTheWorstErrorsSmallerAndGoesWhereTheyAre) {
  FakeMeter first, second;
  const Calibrated coarse(first, 1e-6), refined(second, 20);
  EXPECT_GT(coarse.result.errors.back().p95_frac, 2 * refined.result.errors.back().p95_frac);
  EXPECT_GT(refined.result.measurements, coarse.result.measurements);
  // The knee of matrix products is at 100 tokens: between the coarse 64 and 256.
  int near = 0, far = 0;
  for (const auto& [point, times] : second.measured)
    if (const auto& [table, at] = point; table == "qkv_proj" && !first.measured.contains(point)) ++(at[0] > 64 && at[0] < 256 ? near : far);
  EXPECT_GE(near, 3);
  EXPECT_LE(far, near / 2);
}

// Others slow the device down while some tables are measured for the first time.
TEST(Calibration, ASlowStretchIsSharedByAllTables) {
  FakeMeter once, rounds;
  for (FakeMeter* meter : {&once, &rounds}) meter->slow_after = 30, meter->slow_until = 80;
  const Calibrated short_one(once, 1e-6), long_one(rounds, 4);
  EXPECT_GT(p95(errors_elsewhere(short_one)), 0.8);
  EXPECT_LT(p95(errors_elsewhere(long_one)), 0.25);
  EXPECT_GT(rounds.measurements, 3 * rounds.measured.size());
}

// One measurement in a hundred meets a stall. It is part of what steps take, but says nothing about the operation that it fell on.
TEST(Calibration, StallsAreSharedByAllEntries) {
  FakeMeter quiet, stalled;
  stalled.stalled_every = 100;
  const Calibrated without(quiet, 1e-6);
  Calibrated with(stalled, 1e-6);
  const auto expect_longer = [&] {
    const Profile p = with.profile(), q = without.profile();
    const auto count = static_cast<double>(stalled.measurements), stalls = std::floor(count / 100), longer = 1 + 4 * stalls / count;
    EXPECT_GT(longer, 1.03);
    EXPECT_EQ(p.options.at("stall_frac"), fmt::format("{:.4f}", longer));
    EXPECT_NEAR(time_of_op(p.ops[0], 64, 1).ps, longer * time_of_op(q.ops[0], 64, 1).ps, 1);
    EXPECT_NEAR(p.attention.at(std::array{64.0, 0.0, 0.0, 0.0}).ps, longer * q.attention.at(std::array{64.0, 0.0, 0.0, 0.0}).ps, 1);
    EXPECT_NEAR(p.policy.at("top_k", 256 * 64, 0)->ps, longer * q.policy.at("top_k", 256 * 64, 0)->ps, 1);
  };
  expect_longer();
  EXPECT_NEAR(with.result.errors.back().median_frac, without.result.errors.back().median_frac, 1e-6) << "held-out points are means too";
  with.plan.seconds = 1e-6;
  with.run(stalled);  // what was measured before is read back
  expect_longer();
}

TEST(Calibration, ATableOfUnevenSamplesIsNoOthersMatter) {
  FakeMeter even, uneven;
  uneven.uneven = "down_proj";
  const Calibrated without(even, 1e-6), with(uneven, 1e-6);
  const Profile p = with.profile(), q = without.profile();
  for (std::size_t i = 0; i < p.ops.size(); ++i)
    EXPECT_NEAR(time_of_op(p.ops[i], 64, 1).ps, (p.ops[i].name == "down_proj" ? 1.25 : 1) * time_of_op(q.ops[i], 64, 1).ps, 1)
        << p.ops[i].name;
}

// Tables of policies have more points; what every step needs is measured more often all the same.
TEST(Calibration, EveryStepsTablesAreMeasuredAgainMostOften) {
  FakeMeter meter;
  meter.spread = 100;  // no refinement
  std::atomic<bool> stop = false;
  meter.stop = &stop, meter.stop_at = 1200;
  const TempFolder folder;
  CalibrationPlan plan;
  plan.seconds = 1e6, plan.out = folder.path() + "/profile";
  plan.limits = default_limits(load_model_spec("probe", kModels), DeviceKind::kCpu, std::int64_t{8} << 30);
  std::ostringstream log;
  calibrate(load_model_spec("probe", kModels), meter, plan, stop, log);
  std::map<std::string, int> again;
  for (const auto& [point, times] : meter.measured) again[point.first] += times - 1;
  for (const CalibrationTable& t : calibration_tables(load_model_spec("probe", kModels), DeviceKind::kCpu, plan.limits))
    EXPECT_TRUE(!t.in_every_step() || again.at(t.name) > 2 * again.at("pool1d")) << t.name << " " << again.at(t.name);
}

// Operations that no table of ours has come from recipes, before everything else is measured again and after.
TEST(Calibration, RecipesAddWhatTheEngineCalls) {
  FakeMeter meter;
  const auto calls = [](const std::string& op, std::int64_t bytes, double seconds) {
    Measured m{seconds, 0};
    m.rows = 4, m.tokens = bytes / 256, m.bytes = bytes, m.flops = bytes;
    return RecipeCalls{op, m};
  };
  meter.recipe_calls = {calls("ring_sums", 1000, 1e-5), calls("ring_sums", 100000, 1e-3), calls("ann_visits", 10'000'000, 1e-7),
                        calls("at_rest/kivi2", 50000, 2e-3), calls("top_k", 256 * 64, 1)};
  Calibrated c(meter, 1e-6);
  EXPECT_FALSE(c.profile().policy.has("ring_sums"));
  c.plan.recipes = {load_recipe("h2o", 64), load_recipe("kivi2")};
  c.run(meter);
  EXPECT_THAT(meter.recipes, testing::ElementsAre("h2o", "kivi2", "h2o", "kivi2"));
  const auto expect_added = [&] {
    const Profile p = c.profile();
    EXPECT_NEAR(p.policy.at("ring_sums", 1000, 1000)->ps, 1e7, 1e3);
    EXPECT_NEAR(p.policy.at("ring_sums", 50500, 50500)->ps, 5.05e8, 1e4);
    EXPECT_NEAR(p.policy.at("at_rest/kivi2", 50000, 0)->ps, 2e9, 1);
    EXPECT_LT(p.policy.at("top_k", 256 * 64, 0)->ps, 1e9) << "has a table of its own";
    EXPECT_NEAR(p.policy.at("ann_visits", 1e7, 1e7)->ps, 1e5, 1)
        << "faster than memory: the search's own time has what this is charged with";
  };
  expect_added();
  c.plan.recipes.clear();
  c.run(meter);
  EXPECT_EQ(meter.recipes.size(), 4U);
  expect_added();  // what was measured before stays
}

TEST(Calibration, HeldOutPointsAreNeverFitted) {
  FakeMeter meter;
  const Calibrated c(meter, 2);
  const Profile p = c.profile();
  std::set<std::int64_t> fitted;
  for (const ProfileOp& op : p.ops)
    if (op.name == "down_proj")
      for (const auto& s : op.times.samples()) fitted.insert(s.at[0]);
  for (const CalibrationTable& t : calibration_tables(load_model_spec("probe", kModels), DeviceKind::kCpu, c.plan.limits)) {
    const auto points = held_out_points(t, c.plan.seed);
    EXPECT_GE(points.size(), 4U) << t.name;
    for (const CalibrationPoint& at : points) {
      EXPECT_TRUE(meter.measured.contains({t.name, at})) << t.name;
      EXPECT_FALSE(t.name == "down_proj" && fitted.contains(at[0])) << at[0];
      if (t.kind != TableKind::kDecode) continue;
      for (const auto& s : p.attention.samples()) EXPECT_NE(s.at, (SampleGrid::Point{0, 0, at[0], at[1]}));
    }
  }
  EXPECT_NE(held_out_points(calibration_tables(load_model_spec("probe", kModels), DeviceKind::kCpu, c.plan.limits)[2], 1),
            held_out_points(calibration_tables(load_model_spec("probe", kModels), DeviceKind::kCpu, c.plan.limits)[2], 2))
      << "the seed draws them";
}

TEST(Calibration, GoesOnWhereItWasCutOffAndMeasuresNothingTwice) {
  FakeMeter once(0.01);
  const Calibrated whole(once, 1e-6);
  for (const std::size_t cut : {std::size_t{1}, std::size_t{50}, whole.result.measurements - 3}) {
    FakeMeter meter(0.01);
    meter.stop_after = cut;
    Calibrated c(meter, 1e-6);
    EXPECT_FALSE(c.result.is_complete);
    EXPECT_EQ(c.result.measurements, cut);
    EXPECT_FALSE(std::filesystem::exists(c.plan.out + "/meta.yaml"));
    // The end came in the middle of a line.
    std::ofstream(c.plan.out + "/measurements.csv", std::ios::app) << "qkv_proj,16,0,fit,12";
    meter.stop_after = 0;
    const CalibrationResult again = c.run(meter);
    EXPECT_TRUE(again.is_complete);
    EXPECT_EQ(again.measurements, whole.result.measurements);
    EXPECT_EQ(meter.measurements, meter.measured.size());
    for (const char* file : {"tp1/qkv_proj.csv", "tp1/attention.csv", "tp1/policy.csv", "heldout.csv", "meta.yaml"})
      EXPECT_EQ(c.text(file), whole.text(file)) << file;
  }
}

TEST(Calibration, MoreTimeGoesOnFromAFinishedProfile) {
  FakeMeter meter;
  Calibrated c(meter, 1e-6);
  const std::string before = profile_hash(c.profile());
  c.plan.seconds = 2;
  const CalibrationResult again = c.run(meter);
  EXPECT_GT(again.measurements, c.result.measurements);
  EXPECT_NE(profile_hash(c.profile()), before);
  EXPECT_LT(again.errors.back().p95_frac, c.result.errors.back().p95_frac);
}

// Serving on a CPU keeps codes alone between steps.
TEST(Calibration, AProfileOfACpuSaysThatPackedKvIsDecodedAnew) {
  FakeMeter meter;
  EXPECT_EQ(Calibrated(meter, 1e-6).profile().kv_reads, KvReads::kUnpacked);
  FakeMeter gpu;
  gpu.kind = DeviceKind::kGpu;
  EXPECT_EQ(Calibrated(gpu, 1e-6).profile().kv_reads, KvReads::kStored);
}

// Under the same names they hold times of other launches.
TEST(Calibration, EarlierFoldersOfAGpuAreRefused) {
  FakeMeter meter;
  Calibrated c(meter, 1e-6);
  EXPECT_EQ(error_of([&] { c.run(meter); }), "no error");
  meter.kind = DeviceKind::kGpu;
  EXPECT_THAT(error_of([&] { c.run(meter); }), testing::HasSubstr("of operations '', not 'as the engine launches them'"));
}

TEST(Calibration, AFolderOfAnotherDeviceModelOrSeedIsRefused) {
  FakeMeter meter;
  Calibrated c(meter, 1e-6);
  FakeMeter other;
  other.name = "another card";
  EXPECT_THAT(error_of([&] { c.run(other); }),
              testing::HasSubstr("holds measurements of device 'fake', not 'another card'; choose another --out"));
  EXPECT_THAT(error_of([&] { c.run(meter, "qwen3-8b"); }), testing::HasSubstr("of model 'probe', not 'qwen3-8b'"));
  c.plan.seed = 2;
  EXPECT_THAT(error_of([&] { c.run(meter); }), testing::HasSubstr("of seed '1', not '2'"));
  c.plan.out = c.folder.path();
  EXPECT_THAT(error_of([&] { c.run(meter); }), testing::HasSubstr("exists and holds no calibration"));
}

TEST(Calibration, AFaultyMeasurementIsNamedWithItsLine) {
  FakeMeter meter;
  Calibrated c(meter, 1e-6);
  std::ofstream(c.plan.out + "/measurements.csv", std::ios::app) << "qkv_proj,17,0,maybe,12,0,0,0,0,0,0,1\n";
  EXPECT_THAT(error_of([&] { c.run(meter); }), testing::HasSubstr("'role' = 'maybe' is neither fit nor heldout"));
}

TEST(Calibration, ATableWithoutAKernelIsReportedAndTheRooflineFillsIn) {
  FakeMeter meter;
  meter.lacks = "sampler";
  const Calibrated c(meter, 1e-6);
  EXPECT_THAT(c.result.missing, testing::ElementsAre("sampler"));
  EXPECT_THAT(error_of([&] { setup_of("profile: {kvlab: {path: " + c.plan.out + "}}\n"); }), testing::HasSubstr("no table of sampler"));
  EXPECT_NO_THROW(setup_of("profile: {kvlab: {path: " + c.plan.out + ", missing: roofline}}\n"));
}

// Attention is timed without the write of new keys and values: no table of that must not mean that it costs nothing.
TEST(Calibration, WritingNewKeysIsNeverForgotten) {
  FakeMeter meter;
  meter.lacks = "append_kv";
  const Calibrated c(meter, 1e-6);
  EXPECT_THAT(error_of([&] { setup_of("profile: {kvlab: {path: " + c.plan.out + "}}\n"); }), testing::HasSubstr("no table of append_kv"));
  FakeMeter whole;
  const Calibrated with(whole, 1e-6);
  StepShape shape;
  shape.decodes = 4, shape.decode_kv_tokens = 400, shape.decode_kv_max = shape.decode_kv_min = 100, shape.decode_kv_squares = 40'000;
  const StepCost filled = make_cost_model(setup_of("profile: {kvlab: {path: " + c.plan.out + ", missing: roofline}}\n"))->step(shape);
  const StepCost measured = make_cost_model(setup_of("profile: {kvlab: {path: " + with.plan.out + "}}\n"))->step(shape);
  const double append = 8 * (4e-5 + 3e-7 * 4);
  EXPECT_NEAR(static_cast<double>(measured.part[0] - filled.part[0]) * 1e-12, append, 0.1 * append);
  EXPECT_GT(filled.footing[2], 0) << "the roofline's share";
}

TEST(Calibration, TheProfilePricesStepsAndPolicyOperations) {
  FakeMeter meter;
  const Calibrated c(meter, 1e-6);
  const CostSetup setup = setup_of("profile: {kvlab: {path: " + c.plan.out + "}}\n");
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
  EXPECT_NEAR(static_cast<double>(step.part[0]) * 1e-12, 8 * (5 * small + 4e-3) + 2 * small, 1e-9);
  EXPECT_NEAR(static_cast<double>(step.part[1]) * 1e-12, 8 * (2e-5 + 2e-8 * 16 * 512), 1e-7);
  const Price top_k = setup.prices->policy({"top_k", 1, 256 * 1024, 0});
  EXPECT_NEAR(top_k.total() * 1e-12, 1e-5 + 1e-8 * 1024, 1e-11);
  EXPECT_GT(top_k.ps[0] + top_k.ps[1], 0);
}

// Times that no card can reach: a wrong kernel or a wrong clock. The measurements stay for whoever looks into it.
TEST(Calibration, WhatTheDatasheetForbidsIsNotWritten) {
  const TempFolder cards;
  const std::string card = cards.write("card.yaml", kTinyCard);
  FakeMeter meter;
  Calibrated c(meter, 1e-6);
  std::filesystem::remove_all(c.plan.out);
  c.plan.hardware = card;
  FakeMeter fast;
  fast.speed = 1e-6;
  EXPECT_THAT(error_of([&] { c.run(fast); }), testing::HasSubstr("the measurements are kept in measurements.csv, no profile was written"));
  EXPECT_FALSE(std::filesystem::exists(c.plan.out + "/meta.yaml"));
  EXPECT_TRUE(std::filesystem::exists(c.plan.out + "/measurements.csv"));
}

// The device stood still while the largest points were measured: impossible times, until they are measured again.
TEST(Calibration, AMeasurementThatStalledIsLeftOutOnceOthersOfThePointAreThere) {
  FakeMeter meter;
  meter.spread = 0.02;
  Calibrated c(meter, 1e-6);
  std::filesystem::remove_all(c.plan.out);
  const Measurements first(c.plan.out, {{"device", "fake"}, {"model", "probe"}, {"seed", "1"}});
  FakeMeter stuck;
  stuck.stuck = "down_proj", stuck.stuck_from = 1024;
  EXPECT_THAT(error_of([&] { c.run(stuck); }), testing::HasSubstr("The same command measures again"));
  c.plan.seconds = 1;
  c.run(stuck);
  const Profile p = c.profile();
  const auto op = std::find_if(p.ops.begin(), p.ops.end(), [](const ProfileOp& o) { return o.name == "down_proj"; });
  ASSERT_NE(op, p.ops.end());
  for (const auto& s : op->times.samples())
    EXPECT_NEAR(static_cast<double>(s.time) * 1e-12 / (1e-3 * std::max(1.0, static_cast<double>(s.at[0]) / 100)), 1, 1e-6) << s.at[0];
}

TEST(Calibration, ATimeFarFromTheOthersOfItsPointDoesNotCount) {
  const auto mean_of = [](std::vector<double> medians) {
    return Measurements::Entry{{}, Role::kFit, {}, std::move(medians)}.mean_seconds();
  };
  EXPECT_EQ(mean_of({8}), 8);
  EXPECT_EQ(mean_of({1, 3}), 2) << "noise";
  EXPECT_EQ(mean_of({100, 2}), 2) << "of two the smaller";
  EXPECT_EQ(mean_of({2, 100, 4}), 3);
  EXPECT_EQ(mean_of({0.01, 2, 4}), 3) << "too short is as wrong";
  EXPECT_EQ((Measurements::Entry{{}, Role::kFit, {}, {2, 100, 4}}.deviation_frac()), std::sqrt(2.0) / 3);
}

// A slow device: what would take longer than a fiftieth of the time is left out, and the tables end before.
TEST(Calibration, PointsThatTakeTooLongAreLeftOut) {
  FakeMeter meter;
  meter.speed = 20, meter.copy_bytes_per_s = 1e10;
  const Calibrated c(meter, 1e-6);
  ASSERT_TRUE(c.result.is_complete);
  for (const auto& [point, times] : meter.measured) {
    const auto& [table, at] = point;
    if (table != "attention_prefill") continue;
    EXPECT_LT(20 * true_seconds({table, TableKind::kPrefill, "", {}, 1, "", "", {}, 0, 1}, at), 2.0) << at[0] << " " << at[1];
  }
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
  EXPECT_EQ(errors[2].table, "all");
  EXPECT_EQ(errors[2].points, 22U);
}

TEST(CalibrationTables, RefuseModelsWhoseOperationsAreNotTimed) {
  const CalibrationLimits limits;
  for (const auto& [model, why] : {std::pair{"mixtral-8x7b", "has experts"}, std::pair{"opt-6.7b", "has learned positions"}})
    EXPECT_THAT(error_of([&, name = model] { calibration_tables(load_model_spec(name, kModels), DeviceKind::kGpu, limits); }),
                testing::HasSubstr(why));
  EXPECT_NO_THROW(calibration_tables(load_model_spec("qwen3-8b", kModels), DeviceKind::kGpu, limits));
}

// Every table of a model can be prepared by the CPU's registry, with the shape it asks for.
TEST(CalibrationTables, TheRegistryHasAllThatTheCpuMeasures) {
  const ModelSpec model = load_model_spec("probe", kModels);
  for (const CalibrationTable& t :
       calibration_tables(model, DeviceKind::kCpu, default_limits(model, DeviceKind::kCpu, std::int64_t{8} << 30))) {
    const KernelFamily* family = find_family(DeviceKind::kCpu, t.family, t.format);
    ASSERT_NE(family, nullptr) << t.name;
    const Shape shape = shape_at(t, model, {t.coarse[0].front(), t.axes() == 2 ? t.coarse[1].front() : 0});
    for (const auto& [axis, letters] : family->axes) EXPECT_TRUE(shape.contains(axis)) << t.name << " " << axis;
    EXPECT_EQ(shape.size(), family->axes.size()) << t.name;
  }
}

TEST(KnownHardware, IsFoundByTheDriversNameAndTheMemory) {
  const auto gib = [](double n) { return static_cast<std::int64_t>(n * 1024 * 1024 * 1024); };
  EXPECT_EQ(known_hardware("NVIDIA H100 80GB HBM3", gib(79.1)), "h100");
  EXPECT_EQ(known_hardware("NVIDIA H200", gib(139.8)), "h200");
  EXPECT_EQ(known_hardware("NVIDIA A100-SXM4-80GB", gib(79.2)), "a100-80gb");
  EXPECT_EQ(known_hardware("NVIDIA A100-PCIE-40GB", gib(39.4)), "a100-40gb");
  EXPECT_EQ(known_hardware("NVIDIA GeForce RTX 4090", gib(23.6)), "rtx4090");
  EXPECT_EQ(known_hardware("Tesla T4", gib(14.6)), "t4");
  EXPECT_EQ(known_hardware("NVIDIA GeForce RTX 5060", gib(7.6)), "");
}

}  // namespace

}  // namespace kvlab
