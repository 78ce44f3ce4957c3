#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/csv.h"
#include "base/picoseconds.h"
#include "sim/cost/sample_grid.h"

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
  // A sample per row of `rows`, in ascending order: columns `axes`, time, spread ("": none, else 0 or more).
  [[nodiscard]] SampleGrid grid(const std::vector<std::string>& axes, const std::string& time, TimeUnit unit, const std::string& spread,
                                const std::vector<std::size_t>& rows) const;
  // The same of all rows.
  [[nodiscard]] SampleGrid grid(const std::vector<std::string>& axes, const std::string& time, TimeUnit unit,
                                const std::string& spread = "") const;
  [[nodiscard]] std::string place(std::size_t row) const;  // "file:line"
  [[nodiscard]] const std::string& file() const { return table_.file; }
  [[nodiscard]] const std::vector<std::string>& columns() const { return table_.columns; }

 private:
  [[noreturn]] void fail(std::size_t row, std::size_t column, const std::string& what) const;

  CsvTable table_;
};

// Key columns are matched, axes interpolated.
class ShapeTable {
 public:
  using Key = std::vector<std::pair<std::string, std::int64_t>>;

  static std::optional<ShapeTable> read_if_there(const std::string& file);

  // Rows with this key; may be empty.
  [[nodiscard]] SampleGrid grid(const Key& key, const std::vector<std::string>& axes, const std::string& time = "time_ns") const;
  // In rows with this key, ascending.
  [[nodiscard]] std::vector<std::int64_t> values(const std::string& column, const Key& key) const;

 private:
  explicit ShapeTable(const std::string& file) : csv_(file) {}
  [[nodiscard]] std::vector<std::size_t> rows_of(const Key& key) const;

  MeasuredTable csv_;
};

// y[m, n] = x[m, k] w^T of one type: linear between sizes; proportional beyond the largest n or k, since the last slope is noisy.
class GemmTable {
 public:
  explicit GemmTable(SampleGrid grid);
  [[nodiscard]] SampleGrid::Value at(std::int64_t n, std::int64_t k, std::int64_t m) const;
  [[nodiscard]] const std::vector<std::int64_t>& rows() const { return rows_; }  // m, ascending

 private:
  SampleGrid grid_;  // n, k, m
  std::vector<std::int64_t> rows_;
  std::int64_t most_n_ = 0, most_k_ = 0;
};

}  // namespace kvlab
