#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "traces/line_reader.h"

namespace kvlab {

struct CsvColumn {
  std::string_view name;
  enum class Need : std::uint8_t { kRequired, kOptional, kIgnored } need = Need::kRequired;
};

// Header, columns in any order, optional double quotes. Refuses repeated columns, and unknown ones unless `ignored` takes them.
class CsvRows {
 public:
  // `columns` outlives this; `column` below is a position in it.
  CsvRows(std::unique_ptr<LineReader> lines, std::span<const CsvColumn> columns, IgnoredColumns& ignored);

  bool next();
  [[nodiscard]] bool has(std::size_t column) const { return field_of_[column] >= 0; }
  [[nodiscard]] std::string_view text(std::size_t column) const { return fields_[static_cast<std::size_t>(field_of_[column])]; }
  // In [min, max]; `hint` ends messages.
  [[nodiscard]] std::int64_t integer(std::size_t column, std::int64_t min, std::int64_t max, std::string_view hint = "") const;
  [[nodiscard]] std::int32_t prompt_tokens(std::size_t column) const;
  [[nodiscard]] std::int32_t output_tokens(std::size_t column) const;
  // Decimal >= 0, unit `unit_ns` nanoseconds.
  [[nodiscard]] Span time(std::size_t column, std::int64_t unit_ns) const;

  [[noreturn]] void fail(std::size_t column, const std::string& message) const { lines_->fail(columns_[column].name, message); }
  [[nodiscard]] const InputPlace& lines() const { return *lines_; }

 private:
  void read_header(std::string_view header, IgnoredColumns& ignored);
  std::size_t split(std::string_view line);

  std::unique_ptr<LineReader> lines_;
  std::span<const CsvColumn> columns_;
  std::vector<std::int32_t> field_of_;  // [columns] in the row; -1: absent
  std::vector<std::string_view> fields_;
  std::string header_;
};

inline constexpr std::string_view kPromptHint = "; a prompt has at least 1 token: mend or remove the row";
inline constexpr std::string_view kOutputHint = "; a request emits at least 1 token: mend or remove the row";

// In [min, max], else throws with place and `column`.
std::int64_t integer_field(const InputPlace& at, std::string_view column, std::string_view text, std::int64_t min, std::int64_t max,
                           std::string_view hint);
// A time >= 0 in units of `unit_ns`, else throws.
Span time_field(const InputPlace& at, std::string_view column, std::string_view text, std::int64_t unit_ns);

}  // namespace kvlab
