#include "base/json_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/text.h"

namespace kvlab {

namespace {

constexpr int kDeepest = 32;  // nested sequences, read recursively
const nlohmann::json kNull;

}  // namespace

JsonNode::JsonNode(const nlohmann::json& root, const std::string& file)
    : JsonNode(root, std::make_shared<const std::string>(file), "", 0) {}

JsonNode::JsonNode(const nlohmann::json& value, std::shared_ptr<const std::string> file, std::string key, int depth)
    : value_(&value), file_(std::move(file)), key_(std::move(key)), depth_(depth) {
  if (depth_ > kDeepest) fail(fmt::format("nested more than {} deep", kDeepest));
}

bool JsonNode::is_null() const { return value_->is_null(); }

bool JsonNode::has(const std::string& key) const { return !find(key).is_null(); }

JsonNode JsonNode::at(const std::string& key) const {
  if (!value_->is_object()) fail_value("an object with key '" + key + "'");
  if (!value_->contains(key)) fail("missing key '" + key + "'");
  return find(key);
}

JsonNode JsonNode::find(const std::string& key) const {
  const bool there = value_->is_object() && value_->contains(key);
  return {there ? (*value_)[key] : kNull, file_, key_.empty() ? key : key_ + "." + key, depth_ + 1};
}

std::vector<JsonNode> JsonNode::elements() const {
  if (!value_->is_array()) fail_value("a list");
  std::vector<JsonNode> nodes;
  for (const nlohmann::json& element : *value_) nodes.push_back({element, file_, fmt::format("{}[{}]", key_, nodes.size()), depth_ + 1});
  return nodes;
}

std::string JsonNode::text() const {
  if (!value_->is_string()) fail_value("a text");
  return value_->get<std::string>();
}

std::int32_t JsonNode::integer(std::int32_t min, std::int32_t max) const {
  if (!value_->is_number_integer() || *value_ < min || *value_ > max) fail_value(fmt::format("an integer in [{}, {}]", min, max));
  return value_->get<std::int32_t>();
}

double JsonNode::number() const {
  if (!value_->is_number()) fail_value("a number");
  return value_->get<double>();
}

std::vector<std::int32_t> JsonNode::integers(std::int32_t min, std::int32_t max) const {
  std::vector<std::int32_t> all;
  for (const JsonNode& element : elements()) all.push_back(element.integer(min, max));
  return all;
}

void JsonNode::only_keys(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : value_->items())
    if (std::find(known.begin(), known.end(), key) == known.end()) fail("unknown key '" + key + "'" + suggestion(key, known));
}

bool JsonNode::flag(const std::string& key, bool otherwise) const {
  const JsonNode node = find(key);
  if (node.is_null()) return otherwise;
  if (!node.value().is_boolean()) node.fail_value("true, false");
  return node.value().get<bool>();
}

std::string JsonNode::type(const std::vector<std::string>& supported) const {
  const JsonNode node = at("type");
  const std::string name = node.text();
  if (std::find(supported.begin(), supported.end(), name) == supported.end()) node.fail_value(join(supported, ", "));
  return name;
}

void JsonNode::fail(const std::string& message) const {
  throw InputError(key_.empty() ? *file_ + ": " + message : fmt::format("{}: '{}': {}", *file_, key_, message));
}

void JsonNode::fail_value(const std::string& allowed) const {
  throw InputError(fmt::format("{}: '{}' = {} is not supported; supported: {}", *file_, key_, short_json(*value_), allowed));
}

}  // namespace kvlab
