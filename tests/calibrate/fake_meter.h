#pragma once

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <sstream>

#include "base/hash.h"
#include "calibrate/calibration.h"
#include "calibrate/profile_folder.h"
#include "tests/sim/cost_support.h"

// A device whose times are made up, and what calibration makes of it.
namespace kvlab {

using TableKind = CalibrationTable::Kind;
inline const std::string kModels = KVLAB_SOURCE_DIR "/profiles/models";

inline const ModelSpec& probe() {
  static const ModelSpec model = load_model_spec("probe", kModels);
  return model;
}
// Those that the CPU's calibration has by default, with 8 GiB.
inline CalibrationLimits cpu_limits(const ModelSpec& model) { return default_limits(model, DeviceKind::kCpu, std::int64_t{8} << 30); }
inline std::vector<CalibrationTable> cpu_tables(const ModelSpec& model = probe()) {
  return calibration_tables(model, DeviceKind::kCpu, cpu_limits(model));
}

// Seconds of a made-up device. Matrix products are flat until 100 rows and then grow; attention is a sum of products; a policy's
// operation is its launch and its bytes.
inline double true_seconds(const CalibrationTable& t, const CalibrationPoint& at) {
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
  std::vector<RecipeCalls> recipe_calls;  // calls of any recipe's operations
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
  std::size_t stalled_every = 0;  // distance between measurements whose samples are five times their median in the mean
  std::size_t measurements = 0, slow_after = 0, slow_until = 0;      // between these two everything takes twice as long
  std::map<std::pair<std::string, CalibrationPoint>, int> measured;  // how often

 private:
  double noise_;
};

struct Calibrated {
  explicit Calibrated(FakeMeter& meter, double seconds = 1e-6) {
    plan.seconds = seconds, plan.seed = 1, plan.out = folder.path() + "/profile", plan.source = "test", plan.measured = "2026-01-02";
    plan.limits = cpu_limits(probe());
    result = run(meter);
  }
  CalibrationResult run(FakeMeter& meter, const std::string& model = "probe") {
    std::atomic<bool> stop = false;
    if (meter.stop_after > 0 || meter.stop_at > 0) meter.stop = &stop;
    std::ostringstream log;
    CalibrationResult r = calibrate(load_model_spec(model, kModels), meter, plan, stop, log);
    meter.stop = nullptr;
    return r;
  }
  // A simulation by the profile.
  CostSetup setup(const std::string& more = "") const { return setup_of("profile: {kvlab: {path: " + plan.out + more + "}}\n"); }
  // The message of a run that ends with an InputError.
  std::string error(FakeMeter& meter, const std::string& model = "probe") {
    return error_of([&] { run(meter, model); });
  }
  [[nodiscard]] Profile profile() const { return read_kvlab_profile(plan.out, 1); }
  [[nodiscard]] std::string text(const std::string& file) const { return read_file(plan.out + "/" + file); }
  TempFolder folder;
  CalibrationPlan plan;
  CalibrationResult result;
};

}  // namespace kvlab
