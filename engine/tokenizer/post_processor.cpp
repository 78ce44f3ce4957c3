#include <nlohmann/json.hpp>

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/chain.h"
#include "engine/tokenizer/parts.h"

namespace kvlab::tokenization {

namespace {

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

PostProcessor read_post_processor(const JsonNode& node) {
  return chain_of(node, kPostProcessor, "processors", post_processor_step, [](const std::vector<std::int32_t>& ids) { return ids.size(); });
}

}  // namespace kvlab::tokenization
