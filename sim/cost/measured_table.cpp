#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/read_file.h"
#include "base/text.h"
#include "base/usage.h"
#include "sim/cost/profile.h"
#include "sim/cost/step_prices.h"

namespace kvlab {

namespace {

constexpr long long kMaxCount = 1LL << 40;
constexpr double kMaxPicoseconds = 1e15;         // 1000 s: longer means a wrong unit
constexpr std::array kPsPerUnit{1e3, 1e6, 1e9};  // by TimeUnit

}  // namespace

std::string ns_text(Picoseconds time) { return fmt::format("{}.{:03}", ns(time), (time - to_ps(to_span(time))).count()); }

MeasuredTable::MeasuredTable(const std::string& file) : table_(read_file(file, "a table"), file) {
  if (num_rows() == 0) throw InputError(file + ": no rows below the header");
}

std::string MeasuredTable::place(std::size_t row) const { return file() + ":" + std::to_string(table_.line(row)); }

void MeasuredTable::fail(std::size_t row, std::size_t column, const std::string& what) const {
  throw InputError(place(row) + ": '" + table_.header().columns[column] + "' = '" + text(row, column) + "': " + what);
}

std::int64_t MeasuredTable::count(std::size_t row, std::size_t column) const {
  long long value = 0;
  if (parse_integer(table_.field(row, column), value)) {
    if (value < 0 || value > kMaxCount) fail(row, column, "outside [0, 2^40]");
    return value;
  }
  double real_value = 0;  // data frames write 128.0
  if (!parse_real(table_.field(row, column), real_value) || real_value != std::floor(real_value)) fail(row, column, "not a whole number");
  if (!(real_value >= 0 && real_value <= static_cast<double>(kMaxCount))) fail(row, column, "outside [0, 2^40]");
  return static_cast<std::int64_t>(real_value);
}

double MeasuredTable::real(std::size_t row, std::size_t column) const {
  double value = 0;
  if (!parse_real(table_.field(row, column), value)) fail(row, column, "not a finite number");
  return value;
}

Picoseconds MeasuredTable::time(std::size_t row, std::size_t column, TimeUnit unit) const {
  const double ps = real(row, column) * kPsPerUnit[static_cast<std::size_t>(unit)];
  if (!(ps > 0)) fail(row, column, "a time must be above 0");
  if (ps > kMaxPicoseconds) fail(row, column, "more than 1000 s for one call; is the unit right?");
  return round_ps(ps);
}

SampleGrid MeasuredTable::grid(const std::vector<std::string>& axes, const std::string& time, TimeUnit unit, const std::string& spread,
                               const std::vector<std::size_t>& rows) const {
  std::vector<std::size_t> columns;
  for (const std::string& axis : axes) columns.push_back(column(axis));
  const std::size_t time_column = column(time), spread_column = spread.empty() ? 0 : column(spread);
  std::vector<SampleGrid::Sample> samples;
  samples.reserve(rows.size());
  for (const std::size_t row : rows) {
    SampleGrid::Sample s{{}, this->time(row, time_column, unit), spread.empty() ? 0 : real(row, spread_column)};
    if (s.spread_frac < 0) throw InputError(place(row) + ": '" + spread + "' is below 0");
    for (std::size_t i = 0; i < columns.size(); ++i) s.at[i] = count(row, columns[i]);
    samples.push_back(s);
  }
  const auto belongs_later = [](const SampleGrid::Sample& a, const SampleGrid::Sample& b) { return !(a.at < b.at); };
  if (std::adjacent_find(samples.begin(), samples.end(), belongs_later) == samples.end()) return {axes.size(), std::move(samples)};
  std::vector<std::string> places;
  for (const std::size_t row : rows) places.push_back(place(row));
  return checked_grid(axes.size(), std::move(samples), places);
}

SampleGrid MeasuredTable::grid(const std::vector<std::string>& axes, const std::string& time, TimeUnit unit,
                               const std::string& spread) const {
  return grid(axes, time, unit, spread, rows_of({}));
}

std::optional<MeasuredTable> MeasuredTable::read_if_there(const std::string& file) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  UsageLog::note_file(file);
  return MeasuredTable(file);
}

std::vector<std::size_t> MeasuredTable::rows_of(const Key& key) const {
  std::vector<std::pair<std::size_t, std::string>> wanted;  // compares texts: numbers have no point
  for (const auto& [column, value] : key) wanted.emplace_back(this->column(column), std::to_string(value));
  std::vector<std::size_t> rows;
  for (std::size_t row = 0; row < num_rows(); ++row) {
    const bool is_wanted = std::all_of(wanted.begin(), wanted.end(), [&](const auto& w) { return table_.field(row, w.first) == w.second; });
    if (is_wanted) rows.push_back(row);
  }
  return rows;
}

SampleGrid MeasuredTable::grid(const Key& key, const std::vector<std::string>& axes, const std::string& time) const {
  return grid(axes, time, TimeUnit::kNs, "", rows_of(key));
}

std::vector<std::int64_t> MeasuredTable::values(const std::string& column, const Key& key) const {
  const std::size_t at = this->column(column);
  std::set<std::int64_t> found;
  for (const std::size_t row : rows_of(key)) found.insert(count(row, at));
  return {found.begin(), found.end()};
}

GemmTable::GemmTable(SampleGrid grid) : grid_(std::move(grid)) {
  for (const SampleGrid::Sample& s : grid_.samples()) {
    most_n_ = std::max(most_n_, s.at[0]);
    most_k_ = std::max(most_k_, s.at[1]);
    const auto at = std::lower_bound(rows_.begin(), rows_.end(), s.at[2]);
    if (at == rows_.end() || *at != s.at[2]) rows_.insert(at, s.at[2]);
  }
}

SampleGrid::Value GemmTable::at(std::int64_t n, std::int64_t k, std::int64_t m) const {
  const std::int64_t own_n = std::min(n, most_n_), own_k = std::min(k, most_k_);
  SampleGrid::Value value = grid_.at(std::array{static_cast<double>(own_n), static_cast<double>(own_k), static_cast<double>(m)});
  if (own_n == n && own_k == k) return value;
  value.ps *= static_cast<double>(n) / static_cast<double>(own_n) * static_cast<double>(k) / static_cast<double>(own_k);
  value.footing = Footing::kExtrapolated;
  return value;
}

SampleGrid::SampleGrid(std::size_t axes, std::vector<Sample> samples) : axes_(axes), samples_(std::move(samples)) {
  assert(axes >= 1 && axes <= kMaxAxes);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    bool is_new = i == 0;  // a new node opens new nodes on all lower levels
    for (std::size_t level = 0; level < axes_; ++level) {
      is_new = is_new || samples_[i].at[level] != samples_[i - 1].at[level];
      if (!is_new) continue;
      if (level + 1 < axes_) first_child_[level].push_back(value_[level + 1].size());
      value_[level].push_back(static_cast<double>(samples_[i].at[level]));
    }
  }
  for (std::size_t level = 0; level + 1 < axes_; ++level) first_child_[level].push_back(value_[level + 1].size());
  assert(empty() || value_[axes_ - 1].size() == samples_.size());
}

SampleGrid::Bracket SampleGrid::bracket(std::size_t level, std::size_t begin, std::size_t end, double x) const {
  const double* const values = value_[level].data();
  const double *const first = values + begin, *const last = values + end, *const above = std::upper_bound(first, last, x);
  if (above == first) return {begin, begin, 0, Footing::kExtrapolated};
  const std::size_t low = static_cast<std::size_t>(above - values) - 1;
  if (x == values[low]) return {low, low, 0, Footing::kInside};
  const auto along = [&](std::size_t i, Footing footing) {
    return Bracket{i, i + 1, (x - values[i]) / (values[i + 1] - values[i]), footing};
  };
  if (above != last) return along(low, Footing::kInterpolated);
  if (end - begin == 1) return {low, low, 0, Footing::kExtrapolated};
  return along(low - 1, Footing::kExtrapolated);
}

SampleGrid::Value SampleGrid::descend(std::size_t level, std::size_t begin, std::size_t end, std::span<const double> point) const {
  const Bracket b = bracket(level, begin, end, point[level]);
  const auto value_at = [&](std::size_t node) {
    if (level + 1 == axes_) return Value{samples_[node].time.real(), Footing::kInside};
    return descend(level + 1, first_child_[level][node], first_child_[level][node + 1], point);
  };
  Value low = value_at(b.low);
  low.footing = std::max(low.footing, b.footing);
  if (b.low == b.high) return low;
  const Value high = value_at(b.high);
  double ps = low.ps + (high.ps - low.ps) * b.weight;
  if (b.weight > 1) ps = std::max(ps, high.ps);
  return {ps, std::max(low.footing, high.footing)};
}

SampleGrid::Value SampleGrid::at(std::span<const double> point) const {
  assert(point.size() == axes_ && !empty());
  return descend(0, 0, value_[0].size(), point);
}

void SampleGrid::collect(std::size_t level, std::size_t begin, std::size_t end, std::span<const double> point,
                         std::vector<std::int64_t>& knots) const {
  if (level + 1 == axes_) {
    for (std::size_t i = begin; i < end; ++i) knots.push_back(samples_[i].at[level]);
    return;
  }
  const Bracket b = bracket(level, begin, end, point[level]);
  for (const std::size_t node : {b.low, b.high}) collect(level + 1, first_child_[level][node], first_child_[level][node + 1], point, knots);
}

std::vector<std::int64_t> SampleGrid::last_axis_knots(std::span<const double> point) const {
  std::vector<std::int64_t> knots;
  collect(0, 0, value_[0].size(), point, knots);
  std::sort(knots.begin(), knots.end());
  knots.erase(std::unique(knots.begin(), knots.end()), knots.end());
  return knots;
}

}  // namespace kvlab
