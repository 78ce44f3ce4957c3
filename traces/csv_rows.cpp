#include "traces/csv_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "traces/numbers.h"

namespace kvlab {

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

void fail_where_commas_are_missing(const InputPlace& lines, std::string_view header, std::size_t num_fields) {
  const std::size_t other = header.find_first_of(";\t");
  if (num_fields > 1 || other == std::string_view::npos) return;
  const bool is_tab = header[other] == '\t';
  lines.fail(
      fmt::format("the columns are separated by {0}, not by commas: convert the file, for example with tr '{1}' ',' < FILE > OUT.csv",
                  is_tab ? "tabs" : "';'", is_tab ? "\\t" : ";"));
}

}  // namespace

std::int64_t integer_field(const InputPlace& at, std::string_view column, std::string_view text, std::int64_t min, std::int64_t max,
                           std::string_view hint) {
  long long value = 0;
  if (text.empty()) at.fail(column, "nothing found; expected a whole number");
  const bool is_decimal = text.find_first_not_of("-0123456789") == std::string_view::npos;
  text = without_zero_fraction(text);
  if (parse_integer(text, value) && value >= min && value <= max) return value;
  if (is_decimal && text.size() > 1 && text.front() == '0')
    at.fail(column, quoted(text) + " has a leading zero; write it in decimal without");
  if (!is_decimal) at.fail(column, quoted(text) + " is not a whole number in decimal digits");
  at.fail(column, fmt::format("{} is not a whole number from {} to {}{}", quoted(text), min, max, hint));
}

Span time_field(const InputPlace& at, std::string_view column, std::string_view text, std::int64_t unit_ns) {
  std::int64_t value = 0;
  if (text.empty()) at.fail(column, "nothing found; expected a time");
  if (!parse_time_ns(text, unit_ns, value)) at.fail(column, quoted(text) + " is not a time: expected a decimal number, 0 or more");
  if (value > kMaxTraceNs) at.fail(column, quoted(text) + " is a time beyond ten years; is it in the unit this format has?");
  return Span(value);
}

CsvRows::CsvRows(std::unique_ptr<LineReader> lines, std::span<const CsvColumn> columns, IgnoredColumns& ignored)
    : lines_(std::move(lines)), columns_(columns), field_of_(columns.size(), -1) {
  std::string_view header;
  if (!lines_->next(header)) lines_->fail("the file has no header line");
  read_header(header, ignored);
}

void CsvRows::read_header(std::string_view header, IgnoredColumns& ignored) {
  header_ = header;
  fields_.resize(static_cast<std::size_t>(std::ranges::count(header, ',')) + 1);
  const std::size_t count = split(header_);
  std::vector<std::string_view> known;
  for (const CsvColumn& column : columns_) known.push_back(column.name);
  for (std::size_t i = 0; i < count; ++i) {
    const auto found = std::ranges::find(columns_, trimmed(fields_[i]), &CsvColumn::name);
    if (found == columns_.end()) {
      fail_where_commas_are_missing(*lines_, header, count);
      ignored.pass_over(*lines_, trimmed(fields_[i]), known);
      continue;
    }
    std::int32_t& place = field_of_[static_cast<std::size_t>(found - columns_.begin())];
    if (place >= 0) lines_->fail(fmt::format("column '{}' appears twice in the header", found->name));
    place = static_cast<std::int32_t>(i);
  }
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].need != CsvColumn::Need::kRequired || field_of_[i] >= 0) continue;
    lines_->fail(fmt::format("column '{}' is missing; the header has {}", columns_[i].name, quoted(header)));
  }
  fields_.resize(count);
}

std::size_t CsvRows::split(std::string_view line) {
  std::size_t count = 0;
  for (;;) {
    std::size_t end = 0;
    std::string_view field;
    if (line.starts_with('"')) {
      const std::size_t close = line.find('"', 1);
      if (close == std::string_view::npos || (close + 1 < line.size() && line[close + 1] != ',')) {
        lines_->fail("a field that begins with \" must end with \" before the next comma");
      }
      field = line.substr(1, close - 1);
      end = close + 1 < line.size() ? close + 1 : std::string_view::npos;
    } else {
      end = line.find(',');
      field = line.substr(0, end);
    }
    if (count < fields_.size()) fields_[count] = field;
    ++count;
    if (end == std::string_view::npos) return count;
    line.remove_prefix(end + 1);
  }
}

bool CsvRows::next() {
  std::string_view line;
  if (!lines_->next(line)) return false;
  const std::size_t count = split(line);
  if (count != fields_.size()) {
    lines_->fail(
        fmt::format("{} field{}, but the header has {}: {}", count, count == 1 ? "" : "s", fields_.size(), kvlab::quoted(header_)));
  }
  return true;
}

std::int64_t CsvRows::integer(std::size_t column, std::int64_t min, std::int64_t max, std::string_view hint) const {
  return integer_field(*lines_, columns_[column].name, text(column), min, max, hint);
}

std::int32_t CsvRows::prompt_tokens(std::size_t column) const {
  return static_cast<std::int32_t>(integer(column, 1, kMaxTokens, kPromptHint));
}

std::int32_t CsvRows::output_tokens(std::size_t column) const {
  return static_cast<std::int32_t>(integer(column, 1, kMaxTokens, kOutputHint));
}

Span CsvRows::time(std::size_t column, std::int64_t unit_ns) const {
  return time_field(*lines_, columns_[column].name, text(column), unit_ns);
}

}  // namespace kvlab
