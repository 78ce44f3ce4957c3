#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// A CSV file in memory: one header line, every row as long as it (RFC 4180 quoting); blank lines are no rows.
struct CsvTable {
  std::string file;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::size_t> lines;  // on which each row begins

  [[nodiscard]] bool has(std::string_view column) const;
  // Position of a column; InputError naming the file and the nearest column when there is none.
  [[nodiscard]] std::size_t at(std::string_view column) const;
};

// Errors: missing file, no header, a row of another length, an open quote; with file:line. expected: as read_file() has it.
CsvTable read_csv(const std::filesystem::path& path, std::string_view expected = "a file");
CsvTable parse_csv(std::string_view text, const std::string& name);

// A field as it is written: quoted when it holds a comma, a quote or a line end. One that a spreadsheet would take for a formula gets
// a ' before it, which reading takes away.
std::string csv_field(std::string_view text);
std::string csv_line(const std::vector<std::string>& fields);  // with its line end

// Columns aligned for a terminal: numbers to the right, text to the left, two spaces apart.
std::string text_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

// A number for people: about four digits, thousands separated; "" stays "".
std::string short_number(const std::string& field);
std::string short_number(double value);

}  // namespace kvlab
