
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "base/usage.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

constexpr long long kMaxCount = 1LL << 40;
constexpr double kMaxPicoseconds = 1e15;         // 1000 s: longer means a wrong unit
constexpr std::array kPsPerUnit{1e3, 1e6, 1e9};  // by TimeUnit

}  // namespace

std::string ns_text(Picoseconds time) { return fmt::format("{}.{:03}", ns(time), (time - to_ps(to_span(time))).count()); }

MeasuredTable::MeasuredTable(const std::string& file) : table_(read_csv(file, "a table")) {
  if (table_.rows.empty()) throw InputError(file + ": no rows below the header");
}

std::string MeasuredTable::place(std::size_t row) const { return table_.file + ":" + std::to_string(table_.lines[row]); }

void MeasuredTable::fail(std::size_t row, std::size_t column, const std::string& what) const {
  throw InputError(place(row) + ": '" + table_.columns[column] + "' = '" + text(row, column) + "': " + what);
}

std::int64_t MeasuredTable::count(std::size_t row, std::size_t column) const {
  long long value = 0;
  if (parse_integer(text(row, column), value)) {
    if (value < 0 || value > kMaxCount) fail(row, column, "outside [0, 2^40]");
    return value;
  }
  double real_value = 0;  // data frames write 128.0
  if (!parse_real(text(row, column), real_value) || real_value != std::floor(real_value)) fail(row, column, "not a whole number");
  if (!(real_value >= 0 && real_value <= static_cast<double>(kMaxCount))) fail(row, column, "outside [0, 2^40]");
  return static_cast<std::int64_t>(real_value);
}

double MeasuredTable::real(std::size_t row, std::size_t column) const {
  double value = 0;
  if (!parse_real(text(row, column), value)) fail(row, column, "not a finite number");
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
  std::vector<std::string> places;
  for (const std::size_t row : rows) {
    SampleGrid::Sample s{{}, this->time(row, time_column, unit), spread.empty() ? 0 : real(row, spread_column)};
    if (s.spread_frac < 0) throw InputError(place(row) + ": '" + spread + "' is below 0");
    for (std::size_t i = 0; i < columns.size(); ++i) s.at[i] = count(row, columns[i]);
    samples.push_back(s);
    places.push_back(place(row));
  }
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
    const bool is_wanted = std::all_of(wanted.begin(), wanted.end(), [&](const auto& w) { return text(row, w.first) == w.second; });
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
  std::set<std::int64_t> rows;
  for (const SampleGrid::Sample& s : grid_.samples()) {
    most_n_ = std::max(most_n_, s.at[0]);
    most_k_ = std::max(most_k_, s.at[1]);
    rows.insert(s.at[2]);
  }
  rows_.assign(rows.begin(), rows.end());
}

SampleGrid::Value GemmTable::at(std::int64_t n, std::int64_t k, std::int64_t m) const {
  const std::int64_t own_n = std::min(n, most_n_), own_k = std::min(k, most_k_);
  SampleGrid::Value value = grid_.at(std::array{static_cast<double>(own_n), static_cast<double>(own_k), static_cast<double>(m)});
  if (own_n == n && own_k == k) return value;
  value.ps *= static_cast<double>(n) / static_cast<double>(own_n) * static_cast<double>(k) / static_cast<double>(own_k);
  value.footing = Footing::kExtrapolated;
  return value;
}

}  // namespace kvlab
