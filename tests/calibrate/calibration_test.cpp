// Calibration of a device whose times are made up: what it measures, and the stated error of its tables.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "base/quantile.h"
#include "calibrate/refine.h"
#include "tests/bench/fake_device.h"
#include "tests/calibrate/fake_meter.h"

namespace kvlab {
namespace {

double p95(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() * 95 / 100];
}

// Relative errors of the profile's tables at points of our own, between those that calibration may have measured.
std::vector<double> errors_elsewhere(const Calibrated& c) {
  const Profile p = c.profile();
  std::vector<double> errors;
  for (const CalibrationTable& t : cpu_tables())
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
  return errors;
}

// Between two uses of an operand in a step, the model's weights and the KV of the sequences pass through the cache; between two of a
// layer's activations all others of the pass.
TEST(Calibrate, OperandsAreMetAgainAfterAWholeStep) {
  constexpr std::int64_t kWeights = 4 * (8 * (384 * (2 * 512 + 2 * 128) + 3 * 384 * 768) + 264 * 384), kToken = 4 * 8 * 2 * 128;
  for (const CalibrationTable& t : cpu_tables()) {
    const bool is_policy = t.kind == TableKind::kPolicy;
    EXPECT_EQ(activation_bytes(t, probe(), {100, 7}), is_policy ? 0 : 4 * 100 * (3 * 384 + 2 * (512 + 128) + 2 * 768)) << t.name;
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

// Weights rotate through all that the model has, also where that is many times the cache; an eighth of the memory is the most.
TEST(Calibrate, WeightsRotateThroughTheModelsSize) {
  const ModelSpec model = load_model_spec("llama-100m", kModels);
  for (const CalibrationTable& t : cpu_tables(model)) {
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
  // The points that it states its error for are representative of others.
  const std::vector<double> elsewhere = errors_elsewhere(c);
  EXPECT_LE(median(elsewhere), 0.03);
  EXPECT_LE(p95(elsewhere), 0.10);
  EXPECT_NEAR(median(elsewhere), all.median_frac, 0.01);
  for (const HeldOutError& e : c.result.errors) EXPECT_GE(e.points, 4U) << e.table;
}

TEST(Calibration, RefiningMakesTheWorstErrorsSmallerAndGoesWhereTheyAre) {
  FakeMeter first, second;
  const Calibrated coarse(first), refined(second, 20);
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
  const Calibrated short_one(once), long_one(rounds, 4);
  EXPECT_GT(p95(errors_elsewhere(short_one)), 0.8);
  EXPECT_LT(p95(errors_elsewhere(long_one)), 0.25);
  EXPECT_GT(rounds.measurements, 3 * rounds.measured.size());
}

// One measurement in a hundred meets a stall. It is part of what steps take, but says nothing about the operation that it fell on.
TEST(Calibration, StallsAreSharedByAllEntries) {
  FakeMeter quiet, stalled;
  stalled.stalled_every = 100;
  const Calibrated without(quiet);
  Calibrated with(stalled);
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
  with.run(stalled);  // earlier measurements are read back
  expect_longer();
}

TEST(Calibration, ATableOfUnevenSamplesIsNoOthersMatter) {
  FakeMeter even, uneven;
  uneven.uneven = "down_proj";
  const Calibrated without(even), with(uneven);
  const Profile p = with.profile(), q = without.profile();
  for (std::size_t i = 0; i < p.ops.size(); ++i)
    EXPECT_NEAR(time_of_op(p.ops[i], 64, 1).ps, (p.ops[i].name == "down_proj" ? 1.25 : 1) * time_of_op(q.ops[i], 64, 1).ps, 1)
        << p.ops[i].name;
}

// Tables of policies have more points; what every step needs is measured more often all the same.
TEST(Calibration, EveryStepsTablesAreMeasuredAgainMostOften) {
  FakeMeter meter;
  meter.spread = 100;  // no refinement
  meter.stop_at = 1200;
  const Calibrated c(meter, 1e6);
  std::map<std::string, int> again;
  for (const auto& [point, times] : meter.measured) again[point.first] += times - 1;
  for (const CalibrationTable& t : cpu_tables())
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
  meter.recipe_calls = {calls("word_scores", 1000, 1e-5), calls("word_scores", 100000, 1e-3), calls("ann_visits", 10'000'000, 1e-7),
                        calls("at_rest/kivi2", 50000, 2e-3), calls("top_k", 256 * 64, 1)};
  Calibrated c(meter);
  EXPECT_FALSE(c.profile().policy.has("word_scores"));
  c.plan.recipes = {load_recipe("h2o", 64), load_recipe("kivi2")};
  c.run(meter);
  EXPECT_THAT(meter.recipes, testing::ElementsAre("h2o", "kivi2", "h2o", "kivi2"));
  const auto expect_added = [&] {
    const Profile p = c.profile();
    EXPECT_NEAR(p.policy.at("word_scores", 1000, 1000)->ps, 1e7, 1e3);
    EXPECT_NEAR(p.policy.at("word_scores", 50500, 50500)->ps, 5.05e8, 1e4);
    EXPECT_NEAR(p.policy.at("at_rest/kivi2", 50000, 0)->ps, 2e9, 1);
    EXPECT_LT(p.policy.at("top_k", 256 * 64, 0)->ps, 1e9) << "has a table of its own";
    EXPECT_NEAR(p.policy.at("ann_visits", 1e7, 1e7)->ps, 1e5, 1)
        << "faster than memory: the search's own time has what this is charged with";
  };
  expect_added();
  c.plan.recipes.clear();
  c.run(meter);
  EXPECT_EQ(meter.recipes.size(), 4U);
  expect_added();  // earlier measurements stay
}

TEST(Calibration, HeldOutPointsAreNeverFitted) {
  FakeMeter meter;
  const Calibrated c(meter, 2);
  const Profile p = c.profile();
  std::set<std::int64_t> fitted;
  for (const ProfileOp& op : p.ops)
    if (op.name == "down_proj")
      for (const auto& s : op.times.samples()) fitted.insert(s.at[0]);
  for (const CalibrationTable& t : cpu_tables()) {
    const auto points = held_out_points(t, c.plan.seed);
    EXPECT_GE(points.size(), 4U) << t.name;
    for (const CalibrationPoint& at : points) {
      EXPECT_TRUE(meter.measured.contains({t.name, at})) << t.name;
      EXPECT_FALSE(t.name == "down_proj" && fitted.contains(at[0])) << at[0];
      if (t.kind != TableKind::kDecode) continue;
      for (const auto& s : p.attention.samples()) EXPECT_NE(s.at, (SampleGrid::Point{0, 0, at[0], at[1]}));
    }
  }
  EXPECT_NE(held_out_points(cpu_tables()[2], 1), held_out_points(cpu_tables()[2], 2)) << "the seed draws them";
}

// The device stalled while the largest points were measured: impossible times, until they are measured again.
TEST(Calibration, AMeasurementThatStalledIsLeftOutOnceOthersOfThePointAreThere) {
  FakeMeter meter;
  meter.spread = 0.02;
  Calibrated c(meter);
  std::filesystem::remove_all(c.plan.out);
  const Measurements first(c.plan.out, {{"device", "fake"}, {"model", "probe"}, {"seed", "1"}});
  FakeMeter stuck;
  stuck.stuck = "down_proj", stuck.stuck_from = 1024;
  EXPECT_THAT(c.error(stuck), testing::HasSubstr("The same command measures again"));
  c.plan.seconds = 1;
  c.run(stuck);
  const Profile p = c.profile();
  const auto op = std::find_if(p.ops.begin(), p.ops.end(), [](const ProfileOp& o) { return o.name == "down_proj"; });
  ASSERT_NE(op, p.ops.end());
  for (const auto& s : op->times.samples())
    EXPECT_NEAR(to_s(s.time) / (1e-3 * std::max(1.0, static_cast<double>(s.at[0]) / 100)), 1, 1e-6) << s.at[0];
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
  const Calibrated c(meter);
  ASSERT_TRUE(c.result.is_complete);
  CalibrationTable prefill;
  prefill.kind = TableKind::kPrefill;
  for (const auto& [point, times] : meter.measured) {
    const auto& [table, at] = point;
    if (table != name_of(OpId::kAttentionPrefill)) continue;
    EXPECT_LT(20 * true_seconds(prefill, at), 2.0) << at[0] << " " << at[1];
  }
}

}  // namespace
}  // namespace kvlab
