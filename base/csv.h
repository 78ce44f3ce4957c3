#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// A header and rows of equal length (RFC 4180 quoting); blank lines are skipped.
struct CsvTable {
  std::string file;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::size_t> lines;  // first line of each row

  [[nodiscard]] bool has(std::string_view column) const;
  // Throws InputError if absent.
  [[nodiscard]] std::size_t at(std::string_view column) const;
  // Throws InputError with file:line unless the field is whole.
  [[nodiscard]] std::int64_t whole(std::size_t row, std::string_view column) const;
  // nullopt for an empty field.
  [[nodiscard]] std::optional<std::int64_t> whole_if_any(std::size_t row, std::string_view column) const;
};

// InputError with file:line: missing file, no header, other row length, open quote.
CsvTable read_csv(const std::filesystem::path& path, std::string_view expected = "a file");
CsvTable parse_csv(std::string_view text, const std::string& name);

// The fields of a CSV file in one text, for large tables.
class CsvText {
 public:
  // InputError as parse_csv().
  CsvText(std::string text, const std::string& name);

  // Without rows.
  [[nodiscard]] const CsvTable& header() const { return header_; }
  [[nodiscard]] std::size_t num_rows() const { return num_rows_; }
  [[nodiscard]] std::string_view field(std::size_t row, std::size_t column) const {
    const std::size_t at = (row + 1) * header_.columns.size() + column;
    return std::string_view(text_).substr(ends_[at - 1] + 1, ends_[at] - ends_[at - 1] - 1);
  }
  [[nodiscard]] std::size_t line(std::size_t row) const { return header_.lines.empty() ? row + 2 : header_.lines[row]; }

 private:
  bool split_plain();
  void join(CsvTable table);

  CsvTable header_;  // lines: empty if each row has one line
  std::string text_;
  std::vector<std::size_t> ends_;  // of fields, the header's included; a byte separates two
  std::size_t num_rows_ = 0;
};

// Quoted if needed; formulas get a ', which reading removes.
std::string csv_field(std::string_view text);
std::string csv_line(const std::vector<std::string>& fields);  // with line end

// Aligned: numbers right, text left.
std::string text_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

// About four digits with thousands separators; "" stays "".
std::string short_number(const std::string& field);
std::string short_number(double value);

}  // namespace kvlab
