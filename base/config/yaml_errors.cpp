#include "base/config/yaml_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <vector>

namespace kvlab {

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::size_t indentation(const std::string& line) { return std::min(line.find_first_not_of(" \t\r"), line.size()); }
bool is_indented_by_tab(const std::string& line) { return line.substr(0, indentation(line)).find('\t') != std::string::npos; }
bool has_content(const std::string& line) { return indentation(line) < line.size() && line[indentation(line)] != '#'; }

// The last non-empty line before `at`, else `at`.
std::size_t line_before(const std::vector<std::string>& lines, std::size_t at) {
  for (std::size_t i = at; i > 0; --i)
    if (has_content(lines[i - 1])) return i - 1;
  return at;
}

std::string compared_indentation(const std::vector<std::string>& lines, std::size_t at) {
  const std::size_t before = line_before(lines, at);
  if (before == at || indentation(lines[at]) == indentation(lines[before])) return "";
  return fmt::format("; is line {} indented as it should be? It begins with {} spaces, line {} with {}", at + 1, indentation(lines[at]),
                     before + 1, indentation(lines[before]));
}

std::string hint(const std::vector<std::string>& lines, const YAML::Mark& mark, const std::string& message) {
  const auto at = std::min(static_cast<std::size_t>(std::max(mark.line, 0)), lines.size() - 1);
  for (const std::size_t i : {at, line_before(lines, at)})
    if (is_indented_by_tab(lines[i])) return fmt::format("; line {} is indented by a tab: YAML takes spaces", i + 1);
  if (message.starts_with("end of map flow")) return "; a '{' is not closed";
  if (message.starts_with("end of sequence flow")) return "; a '[' is not closed";
  if (message == "unknown token") return "; a value that begins with such a sign needs quotes";
  const std::string before_mark = lines[at].substr(0, static_cast<std::size_t>(std::max(mark.column, 0)));
  const bool is_second_colon = before_mark.find(": ") != std::string::npos;
  if (message == "illegal map value" && is_second_colon) return "; a value that holds ': ' needs quotes";
  const bool is_about_blocks =
      message == "illegal map value" || message == "illegal block entry" || message == "illegal map key" || message.starts_with("end of");
  return is_about_blocks ? compared_indentation(lines, at) : "";
}

}  // namespace

std::string yaml_error(const std::string& text, const YAML::Mark& mark, const std::string& message) {
  const std::vector<std::string> lines = lines_of(text);
  return mark.is_null() || lines.empty() ? message : message + hint(lines, mark, message);
}

std::string cause_of_second_document(const std::string& text) {
  const std::vector<std::string> lines = lines_of(text);
  if (std::any_of(lines.begin(), lines.end(), [](const std::string& line) { return line.starts_with("---"); })) return "";
  for (std::size_t i = 0; i < lines.size(); ++i)
    if (has_content(lines[i]) && indentation(lines[i]) < indentation(lines[line_before(lines, i)])) return compared_indentation(lines, i);
  return "";
}

}  // namespace kvlab
