#include "traces/logs/log_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_text.h"

namespace kvlab {

namespace {

constexpr const char* kBlank = " \t\r\n";

// Outside of texts.
std::string with_null_for_infinity(std::string_view json) {
  std::string out;
  bool in_text = false;
  for (std::size_t i = 0; i < json.size();) {
    std::size_t taken = in_text && json[i] == '\\' && i + 1 < json.size() ? 2 : 1;
    std::string_view written = json.substr(i, taken);
    if (!in_text) {
      for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
        if (!json.substr(i).starts_with(word)) continue;
        taken = word.size();
        written = "null";
        break;
      }
    }
    if (written == "\"") in_text = !in_text;
    out += written;
    i += taken;
  }
  return out;
}

// Discarded if invalid.
nlohmann::json parse_log_json(const std::string& text) {
  const bool is_of_python = text.find("Infinity") != std::string::npos || text.find("NaN") != std::string::npos;
  return nlohmann::json::parse(is_of_python ? with_null_for_infinity(text) : text, nullptr, false);
}

}  // namespace

BenchLists::BenchLists(const nlohmann::json& root, const std::string& file, const char* first) : root_(root), file_(file), first_(first) {
  (void)list(first);
}

const nlohmann::json& BenchLists::list(const char* key) const {
  const auto found = root_.find(key);
  if (found == root_.end()) throw InputError(fmt::format("{}: has '{}', and no '{}'", file_, first_, key));
  if (!found->is_array()) throw InputError(fmt::format("{}: '{}' is no list: {}", file_, key, short_json(*found)));
  return *found;
}

const nlohmann::json& BenchLists::at(const char* key, std::size_t i) const {
  const nlohmann::json& values = list(key);
  if (values.size() != size()) throw InputError(fmt::format("{}: '{}' has {} entries, '{}' {}", file_, key, values.size(), first_, size()));
  return values[i];
}

std::string BenchLists::where(const char* key, std::size_t i) const { return fmt::format("{}: '{}', entry {},", file_, key, i + 1); }

bool BenchLists::has_error(std::size_t i) const {
  if (!has("errors")) return false;
  const nlohmann::json& error = at("errors", i);
  const bool is_empty_text = error.is_string() && error.get_ref<const std::string&>().empty();
  return !error.is_null() && !is_empty_text;
}

LogText::LogText(std::string text, std::string file)
    : text_(std::move(text)), file_(std::move(file)), first_end_(std::min(text_.find('\n'), text_.size())) {
  const std::string first = text_.substr(0, first_end_);
  refuse_deep_json(first, file_);
  first_line_ = parse_log_json(first);
}

const nlohmann::json& LogText::whole() const {
  if (whole_) return *whole_;
  const bool has_lines = !first_line_.is_discarded() && text_.find_first_not_of(kBlank, first_end_) != std::string::npos;
  if (has_lines) return whole_.emplace(nlohmann::json::value_t::discarded);
  if (!first_line_.is_discarded()) return whole_.emplace(first_line_);
  const std::size_t begin = text_.find_first_not_of(kBlank);
  if (begin == std::string::npos || (text_[begin] != '{' && text_[begin] != '[')) return whole_.emplace(nlohmann::json::value_t::discarded);
  refuse_deep_json(text_, file_);
  return whole_.emplace(parse_log_json(text_));
}

void LogText::each_line(const std::function<void(const std::string& line, const std::string& where)>& each) const {
  std::istringstream lines(text_);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string::npos) each(line, fmt::format("{}:{}", file_, number));
  }
}

std::string LogText::place_of(std::initializer_list<std::string_view> keys) const {
  std::size_t at = 0;
  std::string path;
  for (const std::string_view key : keys) {
    const std::size_t found = text_.find(fmt::format("\"{}\"", key), at);
    if (found != std::string::npos) at = found;
    path += (path.empty() ? "" : ".") + std::string(key);
  }
  const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  return fmt::format("{}:{}: '{}'", file_, line, path);
}

double number_in(const nlohmann::json& value, const std::string& where) {
  if (!value.is_number() || !(value.get<double>() >= 0))
    throw InputError(fmt::format("{} is no number >= 0: {}", where, short_json(value)));
  return value.get<double>();
}

std::int64_t count_in(const nlohmann::json& value, const std::string& where) {
  const double number = number_in(value, where);
  if (!(number < 1e9) || number != std::floor(number)) throw InputError(fmt::format("{} is no count: {}", where, short_json(value)));
  return static_cast<std::int64_t>(number);
}

double seconds_in(const nlohmann::json& value, std::string_view unit, const std::string& where) {
  const double in_s = unit == "s" || unit == "sec" ? 1 : unit == "ms" ? 1e-3 : unit == "us" ? 1e-6 : unit == "ns" ? 1e-9 : 0;
  if (in_s == 0) throw InputError(fmt::format("{} is in \"{}\"; known: s, ms, us, ns", where, unit));
  return in_s * number_in(value, where);
}

const nlohmann::json* member_of(const nlohmann::json& object, std::initializer_list<const char*> path) {
  const nlohmann::json* at = &object;
  for (const char* const key : path) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(key);
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at->is_null() ? nullptr : at;
}

std::string text_in(const nlohmann::json& object, std::initializer_list<std::initializer_list<const char*>> paths) {
  for (const auto& path : paths) {
    const nlohmann::json* found = member_of(object, path);
    if (found != nullptr && found->is_array() && found->size() == 1) found = &found->front();
    if (found != nullptr && found->is_string()) return found->get<std::string>();
  }
  return "";
}

void LeftOut::add(const std::string& what, std::size_t count) {
  const auto known = std::find_if(counts_.begin(), counts_.end(), [&](const auto& entry) { return entry.first == what; });
  if (known == counts_.end())
    counts_.emplace_back(what, count);
  else
    known->second += count;
}

bool LeftOut::is_repeated(const std::string& id) {
  if (id.empty() || ids_.insert(number_of_name(id)).second) return false;
  add("have the id of an earlier one");
  return true;
}

std::string LeftOut::note(std::size_t num_kept) const {
  std::size_t all = num_kept;
  for (const auto& [what, count] : counts_) all += count;
  std::string lines;
  for (const auto& [what, count] : counts_)
    if (count > 0) lines += fmt::format("{} of the log's {} requests {} and are left out\n", count, all, what);
  return lines;
}

}  // namespace kvlab
