#include "engine/model/json_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/text.h"

namespace kvlab {

namespace {

std::string short_dump(const nlohmann::json& value) {
  constexpr std::size_t kMost = 120;
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

}  // namespace

JsonConfig::JsonConfig(std::string path) : path_(std::move(path)) {
  std::ifstream stream(path_);
  if (!stream) fail("cannot be read");
  root_ = Json::parse(stream, nullptr, false);
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
  fail(fmt::format("'{}{}' = {} is not supported; allowed: {}", prefix_, key, short_dump(at(key)), allowed));
}

void JsonConfig::fail(const std::string& message) const { throw InputError(path_ + ": " + message); }

}  // namespace kvlab
