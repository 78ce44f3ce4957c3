#include "engine/tokenizer/chain.h"

#include <fmt/format.h>

#include "base/error.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

constexpr std::size_t kMostTimes = 64;
constexpr std::size_t kAlwaysAllowed = 4096;

void collect_steps(const JsonNode& node, const std::string& key, std::vector<JsonNode>& steps) {
  if (node.is_null() || node.text("type") != "Sequence") return steps.push_back(node);
  for (const JsonNode& one : node.at(key).elements()) collect_steps(one, key, steps);
}

}  // namespace

std::vector<JsonNode> steps_of(const JsonNode& node, const std::string& key) {
  std::vector<JsonNode> steps;
  collect_steps(node, key, steps);
  return steps;
}

char32_t character_at(const JsonNode& node, const std::string& key) {
  const std::string text = node.text(key);
  const Utf8Unit first = next_unit(text, 0);
  if (text.empty() || first.length != text.size()) node.at(key).fail_value("a text of one character");
  return first.code;
}

GrowthLimit::GrowthLimit(const JsonNode& node, const std::string& key) : chain_(fmt::format("{}: '{}'", node.file(), key)) {}

void GrowthLimit::check(std::size_t given, std::size_t now) const {
  if (now / kMostTimes <= given + kAlwaysAllowed / kMostTimes) return;
  throw InputError(fmt::format("{} makes {} bytes (or ids) of {}; at most {} times as much is supported", chain_, now, given, kMostTimes));
}

}  // namespace kvlab::tokenization
