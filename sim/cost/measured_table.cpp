#include "sim/cost/measured_table.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

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

}  // namespace kvlab
