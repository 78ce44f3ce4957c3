#include "calibrate/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "base/quantile.h"

namespace kvlab {

namespace {

SampleGrid::Sample sample_of(const Measurements::Entry& e, const SampleGrid::Point& at) {
  return {at, std::max(Picoseconds{1}, ps_of_s(e.measured.seconds)), e.measured.spread_frac};
}

// Sorted; seconds are means.
std::vector<Measurements::Entry> fitted(const CalibrationTable& table, const Measurements& measurements) {
  std::vector<Measurements::Entry> entries;
  for (const auto& e : measurements.of(table.name))
    if (e.role == Role::kFit) entries.push_back(e);
  const double mean_frac = measurements.mean_frac(table.name);
  for (auto& e : entries) e.measured.seconds *= mean_frac;
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
  if (table.axes() == 1) return entries;
  std::map<std::int64_t, std::set<std::int64_t>> lines;
  for (const auto& e : entries) lines[e.at[0]].insert(e.at[1]);
  const auto is_whole = [&](std::int64_t first) {
    const bool was_planned = std::find(table.coarse[0].begin(), table.coarse[0].end(), first) != table.coarse[0].end();
    return was_planned || std::all_of(table.coarse[1].begin(), table.coarse[1].end(), [&](std::int64_t y) {
             return !table.has({first, y}) || lines[first].contains(y);
           });
  };
  std::erase_if(entries, [&](const auto& e) { return !is_whole(e.at[0]); });
  return entries;
}

void add_op(const CalibrationTable& table, const std::vector<Measurements::Entry>& entries, Profile& profile) {
  std::vector<SampleGrid::Sample> samples;
  for (const auto& e : entries) samples.push_back(sample_of(e, {e.at[0]}));
  if (!samples.empty()) profile.ops.push_back({table.name, table.covers, table.axis, table.per_layer, SampleGrid(1, std::move(samples))});
}

// Mean relative error of the inner points.
double left_out_error(const std::vector<PolicySample>& samples, const std::string& op, PolicyTimes::Scale scale) {
  double sum = 0;
  for (std::size_t i = 1; i + 1 < samples.size(); ++i) {
    std::vector<PolicySample> others = samples;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    const auto value = PolicyTimes(std::move(others), {{op, scale}}).at(op, static_cast<double>(samples[i].bytes), 0);
    sum += std::abs(value->ps / samples[i].time.real() - 1);
  }
  return sum;
}

std::optional<SampleGrid::Value> predicted(const CalibrationTable& table, const Measurements::Entry& e, const Profile& profile) {
  const auto a = static_cast<double>(e.at[0]), b = static_cast<double>(e.at[1]);
  switch (table.kind) {
    case CalibrationTable::Kind::kOp: {
      const auto op = std::find_if(profile.ops.begin(), profile.ops.end(), [&](const ProfileOp& o) { return o.name == table.name; });
      if (op == profile.ops.end()) return std::nullopt;
      return time_of_op(*op, e.at[0], profile.tile_rows);
    }
    case CalibrationTable::Kind::kPrefill:
      if (profile.attention.empty()) return std::nullopt;
      return profile.attention.at(std::array{a, b, 0.0, 0.0});
    case CalibrationTable::Kind::kDecode:
      if (profile.attention.empty()) return std::nullopt;
      return profile.attention.at(std::array{0.0, 0.0, a, b});
    default:
      return profile.policy.at(table.name, static_cast<double>(e.measured.bytes), static_cast<double>(e.measured.flops));
  }
}

HeldOutError summary_of(const std::string& name, std::vector<double> errors) {
  std::sort(errors.begin(), errors.end());
  return {name, errors.size(), quantile_of_sorted(errors, 0.5), quantile_of_sorted(errors, 0.95)};
}

// 90th percentile; 0 without measurements.
double usual_spread(const Measurements& measurements) {
  std::vector<double> spreads;
  for (const std::string& table : measurements.tables())
    for (const auto& entry : measurements.of(table)) spreads.push_back(entry.measured.spread_frac);
  if (spreads.empty()) return 0;
  const auto at = spreads.begin() + static_cast<std::ptrdiff_t>(spreads.size() * 9 / 10);
  std::nth_element(spreads.begin(), at, spreads.end());
  return *at;
}

void add_missed(std::string& text, double value, double goal, const char* format) {
  if (value <= goal) return;
  text += (text.empty() ? "" : ", ") + fmt::format(fmt::runtime(format), 100 * value, 100 * goal);
}

}  // namespace

void fit_tables(const std::vector<CalibrationTable>& tables, const Measurements& measurements, Profile& profile) {
  std::vector<SampleGrid::Sample> attention;
  std::vector<PolicySample> policy;
  std::map<std::string, PolicyTimes::Scale> scales;
  for (const CalibrationTable& table : tables) {
    const std::vector<Measurements::Entry> entries = fitted(table, measurements);
    switch (table.kind) {
      case CalibrationTable::Kind::kOp:
        add_op(table, entries, profile);
        break;
      case CalibrationTable::Kind::kPrefill:
        for (const auto& e : entries) attention.push_back(sample_of(e, {e.at[0], e.at[1], 0, 0}));
        break;
      case CalibrationTable::Kind::kDecode:
        for (const auto& e : entries) attention.push_back(sample_of(e, {0, 0, e.at[0], e.at[1]}));
        break;
      default:
        std::vector<PolicySample> samples;
        for (const auto& e : entries) {
          const Measured& m = e.measured;
          samples.push_back({table.name, m.rows, m.tokens, m.outputs, m.bytes, m.flops, sample_of(e, {}).time, m.spread_frac});
        }
        std::sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
        if (table.kind == CalibrationTable::Kind::kRecipe)
          scales[table.name] = PolicyTimes::Scale::kInSteps;
        else if (left_out_error(samples, table.name, PolicyTimes::Scale::kLog) <
                 left_out_error(samples, table.name, PolicyTimes::Scale::kLinear))
          scales[table.name] = PolicyTimes::Scale::kLog;
        policy.insert(policy.end(), samples.begin(), samples.end());
    }
  }
  std::sort(attention.begin(), attention.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
  profile.attention = SampleGrid(4, std::move(attention));
  profile.policy = PolicyTimes(std::move(policy), scales);
}

double HeldOut::error_frac() const { return std::abs(predicted_ps - measured_ps) / measured_ps; }

std::vector<HeldOut> predict_held_out(const std::vector<CalibrationTable>& tables, const Measurements& measurements,
                                      const Profile& profile) {
  std::vector<HeldOut> all;
  for (const CalibrationTable& table : tables) {
    const double mean_frac = measurements.mean_frac(table.name);
    for (const auto& e : measurements.of(table.name)) {
      if (e.role != Role::kHeldOut) continue;
      if (const auto value = predicted(table, e, profile))
        all.push_back({table.name, e.at, e.measured.seconds * mean_frac * 1e12, value->ps, value->footing});
    }
  }
  return all;
}

std::vector<HeldOutError> errors_by_table(const std::vector<HeldOut>& held_out) {
  std::vector<HeldOutError> errors;
  std::vector<double> all, of_table;
  for (std::size_t i = 0; i < held_out.size(); ++i) {
    of_table.push_back(held_out[i].error_frac());
    all.push_back(of_table.back());
    if (i + 1 < held_out.size() && held_out[i + 1].table == held_out[i].table) continue;
    errors.push_back(summary_of(held_out[i].table, of_table));
    of_table.clear();
  }
  if (!all.empty()) errors.push_back(summary_of("all", all));
  return errors;
}

std::string calibration_failure(const std::vector<HeldOutError>& errors, const Measurements& measurements, const CalibrationGoals& goals) {
  std::string text;
  const auto all = std::find_if(errors.begin(), errors.end(), [](const HeldOutError& e) { return e.table == "all"; });
  if (all != errors.end()) {
    add_missed(text, all->median_frac, goals.median_frac, "held-out error {:.1f} % in the median (goal {:g} %)");
    add_missed(text, all->p95_frac, goals.p95_frac, "held-out error {:.1f} % in the P95 (goal {:g} %)");
  }
  add_missed(text, usual_spread(measurements), goals.spread_frac, "spread of samples {:.0f} % in the P90 (limit {:g} %)");
  return text;
}

}  // namespace kvlab
