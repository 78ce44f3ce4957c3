#include "engine/model/json_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json_text.h"
#include "base/text.h"

namespace kvlab {

namespace {

// Both from 1.
std::string line_and_column(const std::string& text, std::size_t at) {
  const auto begin = text.begin(), end = begin + static_cast<std::ptrdiff_t>(std::min(at, text.size()));
  const std::size_t newline = text.rfind('\n', at == 0 ? std::string::npos : at - 1);
  const std::size_t line_begin = at == 0 || newline == std::string::npos ? 0 : newline + 1;
  return fmt::format("{}:{}", std::count(begin, end, '\n') + 1, std::min(at, text.size()) - line_begin + 1);
}

// By the value's begin; "" in a list.
std::string key_before(const std::string& text, std::size_t at) {
  const auto back = [&](std::size_t from) { return from == 0 ? std::string::npos : text.find_last_not_of(" \t\r\n", from - 1); };
  const std::size_t colon = back(at);
  if (colon == std::string::npos || text[colon] != ':') return "";
  const std::size_t close = back(colon);
  if (close == std::string::npos || close == 0 || text[close] != '"') return "";
  const std::size_t open = text.rfind('"', close - 1);
  return open == std::string::npos ? "" : text.substr(open + 1, close - open - 1);
}

// `byte` from 1. Python's NaN and Infinity are no JSON.
std::string why_no_json(const std::string& path, const std::string& text, std::size_t byte) {
  std::size_t at = byte > 0 ? byte - 1 : 0;
  for (const std::string_view word : {"NaN", "Infinity"}) {
    if (at > text.size() || text.compare(at, word.size(), word) != 0) continue;
    if (at > 0 && text[at - 1] == '-') --at;
    const std::string key = key_before(text, at), found = text[at] == '-' ? "-" + std::string(word) : std::string(word);
    return fmt::format("{}:{}: {}JSON has no {}: write a number, or null where nothing is set", path, line_and_column(text, at),
                       key.empty() ? "" : "'" + key + "' = " + found + ": ", found);
  }
  return fmt::format("{}:{}: not JSON here", path, line_and_column(text, at));
}

// Calls `refuse` for a duplicate key.
nlohmann::json parse_strictly(const std::string& text, const std::function<void(const std::string&)>& refuse) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> open;  // keys of open objects
  return nlohmann::json::parse(text, [&](int /*depth*/, Event event, const nlohmann::json& parsed) {
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event == Event::key && !open.back().insert(parsed.get<std::string>()).second)
      refuse(fmt::format("key '{}' appears twice in the same object", parsed.get<std::string>()));
    return true;
  });
}

}  // namespace

JsonConfig::JsonConfig(std::string path) : path_(std::move(path)) {
  if (is_no_regular_file(path_)) fail("is not a regular file; a JSON file is expected");
  std::ifstream stream(path_);
  if (!stream) fail("cannot be read");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  refuse_lfs_pointer(text, path_);
  refuse_deep_json(text, path_);
  try {
    root_ = parse_strictly(text, [this](const std::string& why) { fail(why); });
  } catch (const Json::parse_error& e) {
    throw InputError(why_no_json(path_, text, e.byte));
  } catch (const Json::out_of_range&) {
    fail("a number in it is beyond what a double holds");
  }
  if (!root_.is_object()) fail("not a JSON object");
}

JsonConfig JsonConfig::object(const std::string& key) const {
  if (!at(key).is_object()) refuse(key, "an object");
  return {path_, prefix_ + key + ".", at(key)};
}

const JsonConfig::Json& JsonConfig::at(const std::string& key) const {
  if (!has(key)) fail(fmt::format("missing key '{}{}'", prefix_, key));
  return root_[key];
}

const JsonConfig::Json* JsonConfig::given(const std::string& key) const { return root_.contains(key) ? &root_[key] : nullptr; }

std::int32_t JsonConfig::integer(const std::string& key, std::int32_t max) const {
  const Json& value = at(key);
  if (!value.is_number_integer() || value < 1 || value > max) refuse(key, fmt::format("an integer in [1, {}]", max));
  return value.get<std::int32_t>();
}

double JsonConfig::positive(const std::string& key) const {
  const Json& value = at(key);
  if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>())) refuse(key, "a positive number");
  return value.get<double>();
}

bool JsonConfig::flag_or(const std::string& key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (!root_[key].is_boolean()) refuse(key, "true or false");
  return root_[key].get<bool>();
}

std::string JsonConfig::text(const std::string& key) const {
  if (!at(key).is_string()) refuse(key, "a text");
  return at(key).get<std::string>();
}

void JsonConfig::only(const std::string& key, const Json& allowed) const {
  if (has(key) && root_[key] != allowed) refuse(key, allowed.dump());
}

void JsonConfig::only_keys(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : root_.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      fail(fmt::format("unknown key '{}{}'{}", prefix_, key, suggestion(key, known)));
}

void JsonConfig::refuse(const std::string& key, const std::string& allowed) const {
  fail(fmt::format("'{}{}' = {} is not supported; allowed: {}", prefix_, key, short_json(has(key) ? at(key) : Json(), 120), allowed));
}

void JsonConfig::fail(const std::string& message) const { throw InputError(path_ + ": " + message); }

}  // namespace kvlab
