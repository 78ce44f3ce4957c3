#include "engine/tokenizer/parts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

constexpr std::size_t kMostTimes = 64;
constexpr std::size_t kAlwaysAllowed = 4096;

void collect_steps(const JsonNode& node, const std::string& key, std::vector<JsonNode>& steps) {
  if (node.is_null() || node.text("type") != "Sequence") return steps.push_back(node);
  for (const JsonNode& one : node.at(key).elements()) collect_steps(one, key, steps);
}

constexpr const char* kPostProcessor = "post_processor";

struct TemplatePart {
  bool is_text = false;           // the ids of the text
  std::vector<std::int32_t> ids;  // else of a special token
};

TemplatePart read_template_part(const JsonNode& node, const JsonNode& special_tokens) {
  if (node.has("Sequence")) {
    if (node.at("Sequence").text("id") != "A") node.at("Sequence").at("id").fail_value("A");
    return {true, {}};
  }
  if (!node.has("SpecialToken")) node.fail_value("{\"Sequence\": ...}, {\"SpecialToken\": ...}");
  TemplatePart part;
  for (const JsonNode& id : special_tokens.at(node.at("SpecialToken").text("id")).at("ids").elements())
    part.ids.push_back(id.integer(0, kMaxTokenId - 1));
  return part;
}

PostProcessor template_processing(const JsonNode& node) {
  std::vector<TemplatePart> parts;
  for (const JsonNode& part : node.at("single").elements()) parts.push_back(read_template_part(part, node.at("special_tokens")));
  return [parts, limit = GrowthLimit(node, kPostProcessor)](std::vector<std::int32_t>& ids, bool add_special) {
    std::size_t made = 0;
    for (const TemplatePart& part : parts) made += (part.is_text ? ids.size() : 0) + (add_special ? part.ids.size() : 0);
    limit.check(ids.size(), made);
    std::vector<std::int32_t> out;
    out.reserve(made);
    for (const TemplatePart& part : parts) {
      if (part.is_text) out.insert(out.end(), ids.begin(), ids.end());
      if (add_special) out.insert(out.end(), part.ids.begin(), part.ids.end());
    }
    ids = std::move(out);
  };
}

PostProcessor post_processor_step(const JsonNode& node) {
  if (!node.is_null() && node.type({"ByteLevel", "TemplateProcessing", "Sequence"}) == "TemplateProcessing")
    return template_processing(node);
  return [](std::vector<std::int32_t>&, bool) {};
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

PostProcessor read_post_processor(const JsonNode& node) {
  return chain_of(node, kPostProcessor, "processors", post_processor_step, [](const std::vector<std::int32_t>& ids) { return ids.size(); });
}

}  // namespace kvlab::tokenization
