#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "traces/ignored_columns.h"
#include "traces/line_reader.h"

namespace kvlab {

struct CsvColumn {
  std::string_view name;
  enum class Need : std::uint8_t { kRequired, kOptional, kIgnored } need = Need::kRequired;
};

// Rows of a CSV file whose header names its columns in any order. A column that appears twice is refused, and an unknown one but
// for those that `ignored` takes. Fields may be in double quotes. Nothing is allocated per row.
class CsvRows {
 public:
  // Reads the header. `columns` must outlive this; its positions are the `column` of the calls below.
  CsvRows(std::unique_ptr<LineReader> lines, std::span<const CsvColumn> columns, IgnoredColumns& ignored);

  bool next();
  [[nodiscard]] bool has(std::size_t column) const { return field_of_[column] >= 0; }
  [[nodiscard]] std::string_view text(std::size_t column) const { return fields_[static_cast<std::size_t>(field_of_[column])]; }
  // A whole number in [min, max]; `hint` ends the message about a value outside.
  [[nodiscard]] std::int64_t integer(std::size_t column, std::int64_t min, std::int64_t max, std::string_view hint = "") const;
  [[nodiscard]] std::int32_t prompt_tokens(std::size_t column) const;
  [[nodiscard]] std::int32_t output_tokens(std::size_t column) const;
  // A decimal number >= 0 in units of `unit_ns` nanoseconds.
  [[nodiscard]] Span time(std::size_t column, std::int64_t unit_ns) const;

  [[noreturn]] void fail(std::size_t column, const std::string& message) const { lines_->fail(columns_[column].name, message); }
  [[nodiscard]] const InputPlace& lines() const { return *lines_; }

 private:
  void read_header(std::string_view header, IgnoredColumns& ignored);
  std::size_t split(std::string_view line);

  std::unique_ptr<LineReader> lines_;
  std::span<const CsvColumn> columns_;
  std::vector<std::int32_t> field_of_;  // [columns] place in the row, -1: the file has no such column
  std::vector<std::string_view> fields_;
  std::string header_;
};

// Hints on the allowed token counts, the same in every reader.
inline constexpr std::string_view kPromptHint = "; a prompt has at least 1 token: mend or remove the row";
inline constexpr std::string_view kOutputHint = "; a request emits at least 1 token: mend or remove the row";

// Reads `text` as a whole number in [min, max], or stops with the place and `column`.
std::int64_t integer_field(const InputPlace& at, std::string_view column, std::string_view text, std::int64_t min, std::int64_t max,
                           std::string_view hint);
// Reads `text` as a time >= 0 in units of `unit_ns`, or stops likewise.
Span time_field(const InputPlace& at, std::string_view column, std::string_view text, std::int64_t unit_ns);

}  // namespace kvlab
