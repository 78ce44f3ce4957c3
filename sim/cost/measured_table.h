#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/csv.h"
#include "base/picoseconds.h"

namespace kvlab {

enum class TimeUnit : std::uint8_t { kNs, kUs, kMs };

// Three decimals, exact to the picosecond.
std::string ns_text(Picoseconds time);

// CSV, kept as text. Errors have file:line and column.
class MeasuredTable {
 public:
  explicit MeasuredTable(const std::string& file);

  [[nodiscard]] bool has(const std::string& column) const { return table_.has(column); }
  [[nodiscard]] std::size_t column(const std::string& name) const { return table_.at(name); }
  [[nodiscard]] std::size_t num_rows() const { return table_.rows.size(); }
  [[nodiscard]] const std::string& text(std::size_t row, std::size_t column) const { return table_.rows[row][column]; }
  [[nodiscard]] std::int64_t count(std::size_t row, std::size_t column) const;  // in [0, 2^40]
  [[nodiscard]] double real(std::size_t row, std::size_t column) const;         // finite
  // Positive; rounded to picoseconds.
  [[nodiscard]] Picoseconds time(std::size_t row, std::size_t column, TimeUnit unit) const;
  [[nodiscard]] std::string place(std::size_t row) const;  // "file:line"
  [[nodiscard]] const std::string& file() const { return table_.file; }
  [[nodiscard]] const std::vector<std::string>& columns() const { return table_.columns; }

 private:
  [[noreturn]] void fail(std::size_t row, std::size_t column, const std::string& what) const;

  CsvTable table_;
};

}  // namespace kvlab
