#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/time.h"

namespace kvlab {

// A small CSV file with a header line, held as text; the columns are found by name. Errors carry file:line and the column.
class MeasuredTable {
 public:
  explicit MeasuredTable(const std::string& file);

  [[nodiscard]] bool has(const std::string& column) const;
  [[nodiscard]] std::size_t column(const std::string& name) const;  // InputError that lists the columns there are
  [[nodiscard]] std::size_t num_rows() const { return rows_.size(); }
  [[nodiscard]] const std::string& text(std::size_t row, std::size_t column) const { return rows_[row][column]; }
  [[nodiscard]] std::int64_t count(std::size_t row, std::size_t column) const;  // a whole number in [0, 2^40]
  [[nodiscard]] double real(std::size_t row, std::size_t column) const;         // finite
  // A positive time, given in units of `ps_per_unit` picoseconds, to the nearest picosecond.
  [[nodiscard]] Picoseconds time(std::size_t row, std::size_t column, double ps_per_unit) const;
  [[nodiscard]] std::string place(std::size_t row) const;  // "file:line"
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const std::vector<std::string>& columns() const { return header_; }

 private:
  [[noreturn]] void fail(std::size_t row, std::size_t column, const std::string& what) const;
  std::string file_;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> line_;
};

}  // namespace kvlab
