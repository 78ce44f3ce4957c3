#include "sim/cost/measured_table.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

namespace {

constexpr long long kMaxCount = 1LL << 40;
constexpr double kMaxPicoseconds = 1e15;  // 1000 s: no kernel takes that long, so the unit must be wrong

std::vector<std::string> split_line(std::string line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
  std::vector<std::string> cells;
  std::size_t begin = 0;
  for (std::size_t comma = line.find(','); comma != std::string::npos; comma = line.find(',', begin)) {
    cells.push_back(line.substr(begin, comma - begin));
    begin = comma + 1;
  }
  cells.push_back(line.substr(begin));
  return cells;
}

}  // namespace

MeasuredTable::MeasuredTable(const std::string& file) : file_(file) {
  std::istringstream stream(read_file(file, "a table"));
  std::size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (number == 1) {
      header_ = split_line(line);
      continue;
    }
    if (line.empty() || line == "\r") continue;
    rows_.push_back(split_line(line));
    line_.push_back(number);
    if (rows_.back().size() != header_.size()) {
      throw InputError(file + ":" + std::to_string(number) + ": has " + std::to_string(rows_.back().size()) + " cells, the header has " +
                       std::to_string(header_.size()));
    }
  }
  if (header_.empty()) throw InputError(file + ": empty file");
  if (rows_.empty()) throw InputError(file + ": no rows below the header");
}

bool MeasuredTable::has(const std::string& column) const { return std::find(header_.begin(), header_.end(), column) != header_.end(); }

std::size_t MeasuredTable::column(const std::string& name) const {
  const auto at = std::find(header_.begin(), header_.end(), name);
  if (at == header_.end()) throw InputError(file_ + ":1: no column '" + name + "'; columns: " + join(header_, ", "));
  return static_cast<std::size_t>(at - header_.begin());
}

std::string MeasuredTable::place(std::size_t row) const { return file_ + ":" + std::to_string(line_[row]); }

void MeasuredTable::fail(std::size_t row, std::size_t column, const std::string& what) const {
  throw InputError(place(row) + ": '" + header_[column] + "' = '" + rows_[row][column] + "': " + what);
}

std::int64_t MeasuredTable::count(std::size_t row, std::size_t column) const {
  long long value = 0;
  if (parse_integer(rows_[row][column], value)) {
    if (value < 0 || value > kMaxCount) fail(row, column, "outside [0, 2^40]");
    return value;
  }
  double real_value = 0;  // data frames turn whole numbers into 128.0
  if (!parse_real(rows_[row][column], real_value) || real_value != std::floor(real_value)) fail(row, column, "not a whole number");
  if (!(real_value >= 0 && real_value <= static_cast<double>(kMaxCount))) fail(row, column, "outside [0, 2^40]");
  return static_cast<std::int64_t>(real_value);
}

double MeasuredTable::real(std::size_t row, std::size_t column) const {
  double value = 0;
  if (!parse_real(rows_[row][column], value)) fail(row, column, "not a finite number");
  return value;
}

Picoseconds MeasuredTable::time(std::size_t row, std::size_t column, double ps_per_unit) const {
  const double ps = real(row, column) * ps_per_unit;
  if (!(ps > 0)) fail(row, column, "a time must be above 0");
  if (ps > kMaxPicoseconds) fail(row, column, "more than 1000 s for one call; is the unit right?");
  return std::llround(ps);
}

}  // namespace kvlab
