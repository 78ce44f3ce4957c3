#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/measured_table.h"
#include "sim/cost/sample_grid.h"

namespace kvlab {

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
