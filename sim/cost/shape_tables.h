#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/measured_table.h"
#include "sim/cost/sample_grid.h"

namespace kvlab {

// A CSV file of times whose columns are shapes: key columns, which are taken as they are, and axes, which are interpolated.
class ShapeTable {
 public:
  using Key = std::vector<std::pair<std::string, std::int64_t>>;

  // None if there is no such file.
  static std::optional<ShapeTable> read_if_there(const std::string& file);

  // The rows with this key over `axes`; empty if there are none.
  [[nodiscard]] SampleGrid grid(const Key& key, const std::vector<std::string>& axes, const std::string& time = "time_ns") const;
  // The values of a column in the rows with this key, ascending.
  [[nodiscard]] std::vector<std::int64_t> values(const std::string& column, const Key& key) const;

 private:
  explicit ShapeTable(const std::string& file) : csv_(file) {}
  [[nodiscard]] std::vector<std::size_t> rows_of(const Key& key) const;

  MeasuredTable csv_;
};

// Times of matrix products y[m, n] = x[m, k] w^T of one type over n, k and m: straight lines between measured sizes, and beyond the
// largest n or k in proportion to it, because the slope between the last two is noise over so long a way.
class GemmTable {
 public:
  explicit GemmTable(SampleGrid grid);
  [[nodiscard]] SampleGrid::Value at(std::int64_t n, std::int64_t k, std::int64_t m) const;
  [[nodiscard]] const std::vector<std::int64_t>& rows() const { return rows_; }  // measured m, ascending

 private:
  SampleGrid grid_;  // n, k, m
  std::vector<std::int64_t> rows_;
  std::int64_t most_n_ = 0, most_k_ = 0;
};

}  // namespace kvlab
