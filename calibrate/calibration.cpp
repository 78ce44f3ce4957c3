#include "calibrate/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <ostream>
#include <random>

#include "base/error.h"
#include "calibrate/profile_folder.h"
#include "calibrate/refine.h"

namespace kvlab {

namespace {

using SteadyClock = std::chrono::steady_clock;

class Calibrator {
 public:
  Calibrator(const ModelSpec& model, Meter& meter, const CalibrationPlan& plan, const std::atomic<bool>& stop, std::ostream& log)
      : meter_(meter), plan_(plan), stop_(stop), log_(log), facts_(meter.facts()), measurements_(plan.out, identity(model)) {
    for (const CalibrationTable& table : calibration_tables(model, facts_.kind, plan.limits)) {
      if (meter.can_measure(table))
        tables_.push_back(table);
      else
        result_.missing.push_back(table.name);
    }
    tile_rows_ = facts_.kind == DeviceKind::kGpu ? Profile{}.tile_rows : 1;
    seconds_each_ = seconds_each();
  }

  CalibrationResult run(const ModelSpec& model) {
    if (measurements_.size() > 0) log_ << fmt::format("calibrate: going on from {} measurements in {}\n", measurements_.size(), plan_.out);
    const bool has_coarse = measure_coarse(), has_all = has_coarse && measure_held_out();
    if (has_all) measure_recipes();
    if (has_all) meet_noise();
    if (has_all) refine();
    if (has_all) measure_again();
    if (has_all) measure_recipes();
    result_.measurements = measurements_.size();
    result_.is_complete = has_all;
    if (!has_all) return result_;
    Profile profile;
    profile.tile_rows = tile_rows_;
    profile.attention_has_append = false;
    profile.kv_reads = facts_.kind == DeviceKind::kCpu ? KvReads::kUnpacked : KvReads::kStored;
    fit_tables(with_recipe_tables(), measurements_, profile);
    const std::vector<HeldOut> held_out = predict_held_out(tables_, measurements_, profile);
    result_.errors = errors_by_table(held_out);
    result_.failure = calibration_failure(result_.errors, measurements_);
    if (!result_.failure.empty()) profile.options["calibration_failure"] = result_.failure;
    write_profile_folder({model, facts_, plan_, result_.errors, held_out, measurements_}, std::move(profile));
    return result_;
  }

 private:
  [[nodiscard]] Measurements::Identity identity(const ModelSpec& model) const {
    Measurements::Identity all{{"device", facts_.name}, {"model", model.name}, {"seed", std::to_string(plan_.seed)}};
    // Older folders time other operations under the same names.
    if (facts_.kind == DeviceKind::kGpu) all["operations"] = "as the engine launches them";
    return all;
  }
  [[nodiscard]] double left() const { return plan_.seconds - std::chrono::duration<double>(SteadyClock::now() - begin_).count(); }

  void measure(const CalibrationTable& table, const CalibrationPoint& at, Role role) {
    measurements_.add(table.name, at, role, meter_.measure(table, at, seconds_each_));
    if (SteadyClock::now() - said_ < std::chrono::seconds(10)) return;
    said_ = SteadyClock::now();
    log_ << fmt::format("calibrate: {} measurements, {:.0f} s left\n", measurements_.size(), std::max(0.0, left()));
  }

  // A quarter of the time; preparing operands takes as long.
  [[nodiscard]] double seconds_each() const {
    std::size_t points = 0;
    for (const CalibrationTable& t : tables_) points += coarse_size(t) + held_out_points(t, plan_.seed).size();
    return std::clamp(0.25 * plan_.seconds / static_cast<double>(std::max<std::size_t>(points, 1)), 0.002, 0.25);
  }

  // Five samples would take over 1/50 of the time (and a second), judged by the largest point below on the line.
  [[nodiscard]] bool takes_too_long(const CalibrationTable& table, const CalibrationPoint& at) const {
    const double most = std::max(1.0, plan_.seconds / 50);
    double expected = 0;
    for (const auto& e : measurements_.of(table.name)) {
      if (e.at[0] > at[0] || e.at[1] > at[1] || e.at == at) continue;
      double growth = static_cast<double>(at[0]) / static_cast<double>(std::max<std::int64_t>(1, e.at[0]));
      if (table.axes() == 2) growth *= static_cast<double>(at[1] + at[0]) / static_cast<double>(e.at[1] + e.at[0]);
      constexpr double kRuns = 7;  // two to warm up, five samples
      if (e.measured.seconds * kRuns > most / 8) expected = std::max(expected, e.measured.seconds * kRuns * std::min(growth, 4.0));
    }
    return expected > most;
  }

  // Alternates tables, against slow seconds of the device.
  bool measure_coarse() {
    std::vector<std::vector<CalibrationPoint>> points;
    std::size_t most = 0;
    for (const CalibrationTable& table : tables_) {
      points.push_back(unmeasured_points(table, measurements_));
      most = std::max(most, points.back().size());
    }
    for (std::size_t i = 0; i < most; ++i) {
      for (std::size_t t = 0; t < tables_.size(); ++t) {
        if (stop_) return false;
        if (i < points[t].size() && !takes_too_long(tables_[t], points[t][i])) measure(tables_[t], points[t][i], Role::kFit);
      }
    }
    return true;
  }

  bool measure_held_out() {
    for (const CalibrationTable& table : tables_) {
      for (const CalibrationPoint& at : held_out_points(table, plan_.seed)) {
        if (stop_) return false;
        if (!measurements_.has(table.name, at) && !takes_too_long(table, at)) measure(table, at, Role::kHeldOut);
      }
    }
    return true;
  }

  // Twice, so that refinement does not follow noise.
  void meet_noise() {
    for (const CalibrationTable& table : tables_) {
      const auto& entries = measurements_.of(table.name);
      const auto middle = std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.at[0] >= kMiddle; });
      if (middle == entries.end() || middle->times() > 1) continue;
      if (stop_ || left() <= kAgainFrac * plan_.seconds) return;
      const CalibrationPoint at = middle->at;
      measure(table, at, middle->role);
    }
  }

  void refine() {
    while (!stop_ && left() > kAgainFrac * plan_.seconds) {
      const CalibrationTable* worst_table = nullptr;
      Gap worst;
      for (const CalibrationTable& table : tables_) {
        const auto gap = widest_gap(table, measurements_, tile_rows_);
        if (!gap || gap->error <= worst.error || !table.has(gap->at) || takes_too_long(table, gap->at)) continue;
        worst = *gap;
        worst_table = &table;
      }
      if (worst_table == nullptr) return;
      measure(*worst_table, worst.at, Role::kFit);
      // A new line is only useful if measured whole.
      for (const CalibrationPoint& at : unmeasured_points(*worst_table, measurements_)) {
        if (stop_ || at[0] != worst.at[0]) continue;
        measure(*worst_table, at, Role::kFit);
      }
    }
  }

  // Measured least often.
  [[nodiscard]] Measurements::Entry next_again(const CalibrationTable& table, std::mt19937_64& random) const {
    const auto& entries = measurements_.of(table.name);
    const int least =
        std::min_element(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.times() < b.times(); })->times();
    std::vector<Measurements::Entry> next;
    std::copy_if(entries.begin(), entries.end(), std::back_inserter(next), [&](const auto& e) { return e.times() == least; });
    return next[random() % next.size()];
  }

  // Averages over slow phases. Tables take turns; those outside of every step in every fourth.
  void measure_again() {
    std::mt19937_64 random(plan_.seed);
    std::map<std::string, std::size_t> again;
    std::vector<const CalibrationTable*> tables;
    for (const CalibrationTable& table : tables_)
      if (!measurements_.of(table.name).empty()) tables.push_back(&table);
    for (int turn = 0;; ++turn) {
      const bool is_all = turn % 4 == 0;
      bool has_measured = false;
      std::shuffle(tables.begin(), tables.end(), random);
      for (const CalibrationTable* table : tables) {
        if (!is_all && !table->in_every_step()) continue;
        if (again[table->name] >= kMostRounds * measurements_.of(table->name).size()) continue;
        if (stop_ || left() <= 0) return;
        const Measurements::Entry point = next_again(*table, random);
        measure(*table, point.at, point.role);
        ++again[table->name];
        has_measured = true;
      }
      if (is_all && !has_measured) return;
    }
  }

  // Before and after all else, against slow phases.
  void measure_recipes() {
    RecipeSteps steps{{}, {1, 4}};
    for (std::int32_t n = 64; n < plan_.limits.tokens; n *= 4) steps.prompt_tokens.push_back(n);
    for (const Recipe& recipe : plan_.recipes) {
      if (stop_) return;
      for (const RecipeCalls& c : meter_.measure_recipe(recipe, steps, stop_))
        if (!has_table(c.op)) measurements_.add(c.op, {c.measured.bytes, c.measured.flops}, Role::kFit, c.measured);
    }
  }
  [[nodiscard]] bool has_table(const std::string& name) const {
    return std::any_of(tables_.begin(), tables_.end(), [&](const CalibrationTable& t) { return t.name == name; });
  }
  [[nodiscard]] std::vector<CalibrationTable> with_recipe_tables() const {
    std::vector<CalibrationTable> all = tables_;
    for (const std::string& name : measurements_.tables()) {
      if (has_table(name)) continue;
      all.emplace_back();
      all.back().name = name, all.back().kind = CalibrationTable::Kind::kRecipe;
    }
    return all;
  }

  static constexpr double kAgainFrac = 0.45;  // of the time, at least, to repeat all points
  static constexpr std::size_t kMostRounds = 5;
  static constexpr std::int64_t kMiddle = 64;  // tokens or sequences of points measured twice at first
  Meter& meter_;
  const CalibrationPlan& plan_;
  const std::atomic<bool>& stop_;
  std::ostream& log_;
  DeviceFacts facts_;
  Measurements measurements_;
  std::vector<CalibrationTable> tables_;
  CalibrationResult result_;
  int tile_rows_ = 1;
  double seconds_each_ = 0;  // of a measurement
  SteadyClock::time_point begin_ = SteadyClock::now(), said_ = begin_;
};

}  // namespace

CalibrationResult calibrate(const ModelSpec& model, Meter& meter, const CalibrationPlan& plan, const std::atomic<bool>& stop,
                            std::ostream& log) {
  return Calibrator(model, meter, plan, stop, log).run(model);
}

}  // namespace kvlab
