#include "base/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/read_file.h"
#include "base/text.h"

namespace kvlab {

bool CsvTable::has(std::string_view column) const { return std::find(columns.begin(), columns.end(), column) != columns.end(); }

std::size_t CsvTable::at(std::string_view column) const {
  const auto found = std::find(columns.begin(), columns.end(), column);
  if (found == columns.end()) throw InputError(file + ":1: has no column '" + std::string(column) + "'" + suggestion(column, columns));
  return static_cast<std::size_t>(found - columns.begin());
}

std::int64_t CsvTable::whole(std::size_t row, std::string_view column) const {
  long long value = 0;
  const std::string& field = rows[row][at(column)];
  if (!parse_integer(field, value)) throw InputError(fmt::format("{}:{}: '{}' is no whole number: '{}'", file, lines[row], column, field));
  return value;
}

std::optional<std::int64_t> CsvTable::whole_if_any(std::size_t row, std::string_view column) const {
  return rows[row][at(column)].empty() ? std::nullopt : std::optional(whole(row, column));
}

namespace {

constexpr const char* kTextMark = "'";

// Formulas, and texts that begin with the mark.
bool needs_mark(std::string_view text) {
  double value = 0;
  while (text.starts_with(kTextMark)) text.remove_prefix(1);
  return !text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos && !parse_real(text, value);
}

bool is_mark(char c) { return c == ',' || c == '\n' || c == '"' || c == '\r'; }

// False at the end. `line`: first line of the record, then of the next.
bool take_record(std::string_view& text, std::vector<std::string>& fields, std::size_t& line, const std::string& name) {
  fields.clear();
  if (text.empty()) return false;
  const std::size_t first_line = line;
  std::string field;
  bool quoted = false;
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    const std::size_t begin = i;
    while (!quoted && i < text.size() && !is_mark(text[i])) ++i;
    field.append(text, begin, i - begin);
    if (i == text.size()) break;
    const char c = text[i];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') {
        field += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        field += '"';
        ++i;
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      fields.push_back(std::move(field));
      field.clear();
    } else if (c == '\n') {
      break;
    }
  }
  if (quoted) throw InputError(fmt::format("{}:{}: a quote is never closed", name, first_line));
  fields.push_back(std::move(field));
  for (std::string& one : fields)
    if (one.starts_with(kTextMark) && needs_mark(one)) one.erase(0, 1);
  text.remove_prefix(std::min(text.size(), i + 1));
  return true;
}

bool is_number(std::string_view text) {
  double value = 0;
  std::string plain(text);
  std::erase(plain, ',');
  while (!plain.empty() && (plain.back() == '%' || plain.back() == '*' || plain.back() == ' ')) plain.pop_back();
  return parse_real(plain, value);
}

}  // namespace

CsvTable parse_csv(std::string_view text, const std::string& name) {
  CsvTable table{name, {}, {}, {}};
  std::size_t line = 1;
  if (!take_record(text, table.columns, line, name)) throw InputError(name + ": empty file; a header line is expected");
  std::vector<std::string> fields;
  for (std::size_t at = line; take_record(text, fields, line, name); at = line) {
    if (fields.size() == 1 && fields[0].empty() && table.columns.size() > 1) continue;  // a blank line
    if (fields.size() != table.columns.size()) {
      throw InputError(fmt::format("{}:{}: has {} fields where the header has {}", name, at, fields.size(), table.columns.size()));
    }
    table.rows.push_back(std::move(fields));
    table.lines.push_back(at);
  }
  return table;
}

CsvTable read_csv(const std::filesystem::path& path, std::string_view expected) {
  return parse_csv(read_file(path, expected), path.string());
}

CsvText::CsvText(std::string text, const std::string& name) : header_{name, {}, {}, {}}, text_(std::move(text)) {
  if (!split_plain()) join(parse_csv(text_, name));
}

// False if parse_csv() has to read the text or to refuse it: quotes, marks, blank lines, rows of unequal length, no end of line.
bool CsvText::split_plain() {
  if (!text_.ends_with('\n') || text_.starts_with('\n')) return false;
  ends_.reserve(text_.size() / 4);
  const char *const begin = text_.data(), *const end = begin + text_.size();
  std::size_t columns = 0, lines = 0;
  for (const char* at = begin; at != end; ++at) {
    while (*at > ',') ++at;  // up to the last line's end
    if (*at == '"' || *at == '\r' || *at == kTextMark[0]) return false;
    if (*at != ',' && *at != '\n') continue;
    ends_.push_back(static_cast<std::size_t>(at - begin));
    if (*at == ',') continue;
    if (lines == 0) columns = ends_.size();
    if (ends_.size() != ++lines * columns || at[-1] == '\n') return false;
  }
  num_rows_ = lines - 1;
  for (std::size_t i = 0, first = 0; i < columns; first = ends_[i++] + 1) header_.columns.push_back(text_.substr(first, ends_[i] - first));
  return true;
}

void CsvText::join(CsvTable table) {
  text_.clear();
  ends_.clear();
  const auto add = [this](const std::vector<std::string>& fields) {
    for (const std::string& field : fields) {
      ends_.push_back((text_ += field).size());
      text_ += '\n';
    }
  };
  add(table.columns);
  for (const auto& row : table.rows) add(row);
  num_rows_ = table.rows.size();
  table.rows.clear();
  header_ = std::move(table);
}

std::string csv_field(std::string_view text) {
  const std::string field = (needs_mark(text) ? kTextMark : "") + std::string(text);
  if (field.find_first_of(",\"\r\n") == std::string::npos) return field;
  std::string quoted = "\"";
  for (const char c : field) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (std::size_t i = 0; i < fields.size(); ++i) line += (i == 0 ? "" : ",") + csv_field(fields[i]);
  return line + "\n";
}

std::string text_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> width(header.size());
  std::vector<bool> numeric(header.size(), true);
  for (std::size_t c = 0; c < header.size(); ++c) width[c] = header[c].size();
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < header.size(); ++c) {
      width[c] = std::max(width[c], row[c].size());
      if (!row[c].empty() && !is_number(row[c])) numeric[c] = false;
    }
  }
  const auto line = [&](const std::vector<std::string>& fields) {
    std::string text;
    for (std::size_t c = 0; c < header.size(); ++c) {
      if (c > 0) text += "  ";
      text += numeric[c] ? fmt::format("{:>{}}", fields[c], width[c]) : fmt::format("{:<{}}", fields[c], width[c]);
    }
    while (text.ends_with(' ')) text.pop_back();
    return text + "\n";
  };
  std::string text = line(header);
  for (const auto& row : rows) text += line(row);
  return text;
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return "";
  const double size = std::abs(value);
  const int decimals = size >= 1000 || value == std::floor(value) ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.01 ? 3 : 5;
  std::string text = fmt::format("{:.{}f}", value, decimals);
  const std::size_t begin = text.starts_with('-') ? 1 : 0;
  std::size_t end = text.find('.');
  if (end == std::string::npos) end = text.size();
  for (std::size_t at = end; at > begin + 3;) text.insert(at -= 3, ",");
  return text;
}

std::string short_number(const std::string& field) {
  double value = 0;
  return parse_real(field, value) ? short_number(value) : field;
}

}  // namespace kvlab
