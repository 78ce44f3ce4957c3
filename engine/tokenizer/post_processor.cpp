#include "engine/tokenizer/post_processor.h"

#include <nlohmann/json.hpp>

#include "engine/tokenizer/bpe.h"

namespace kvlab::tokenization {

namespace {

struct TemplatePart {
  bool is_text = false;           // the ids of the text
  std::vector<std::int32_t> ids;  // else these, of a special token
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
  return [parts](std::vector<std::int32_t>& ids, bool add_special) {
    std::vector<std::int32_t> out;
    for (const TemplatePart& part : parts) {
      if (part.is_text) out.insert(out.end(), ids.begin(), ids.end());
      if (add_special) out.insert(out.end(), part.ids.begin(), part.ids.end());
    }
    ids = std::move(out);
  };
}

}  // namespace

PostProcessor read_post_processor(const JsonNode& node) {
  if (node.is_null()) return [](std::vector<std::int32_t>&, bool) {};
  const std::string type = node.type({"ByteLevel", "TemplateProcessing", "Sequence"});
  if (type == "TemplateProcessing") return template_processing(node);
  std::vector<PostProcessor> parts;
  if (type == "Sequence") {
    for (const JsonNode& one : node.at("processors").elements()) parts.push_back(read_post_processor(one));
  }
  return [parts](std::vector<std::int32_t>& ids, bool add_special) {
    for (const PostProcessor& part : parts) part(ids, add_special);
  };
}

}  // namespace kvlab::tokenization
