#include "engine/tokenizer/normalizer.h"

#include "engine/tokenizer/chain.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

Normalizer form(NormalForm form) {
  return [form](const std::string& text) { return normalized(text, form); };
}

Normalizer prepend(const std::string& prefix) {
  return [prefix](const std::string& text) { return text.empty() ? text : prefix + text; };
}

Normalizer strip(bool left, bool right) {
  return [left, right](const std::string& text) {
    std::size_t begin = 0, end = text.size();
    while (left && begin < end && is_white_space(next_unit(text, begin).code)) begin += next_unit(text, begin).length;
    const auto last = [&] { return last_character(std::string_view(text).substr(0, end)); };
    while (right && begin < end && is_white_space(next_unit(text, last()).code)) end = last();
    return text.substr(begin, end - begin);
  };
}

Normalizer normalizer_step(const JsonNode& node) {
  if (node.is_null()) return [](std::string text) { return text; };
  const std::string type = node.type({"NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Strip", "Sequence"});
  if (type == "NFC") return form(NormalForm::kC);
  if (type == "NFD") return form(NormalForm::kD);
  if (type == "NFKC") return form(NormalForm::kKC);
  if (type == "NFKD") return form(NormalForm::kKD);
  if (type == "Prepend") return prepend(node.text("prepend"));
  if (type == "Strip") return strip(node.flag("strip_left", true), node.flag("strip_right", true));
  const Pattern pattern = Pattern::read(node.at("pattern"));
  return [pattern, content = node.text("content")](const std::string& text) { return pattern.replaced(text, content); };
}

}  // namespace

Normalizer read_normalizer(const JsonNode& node) {
  const auto make = [](const JsonNode& step) {
    return [normalize = normalizer_step(step)](std::string& text) { text = normalize(std::move(text)); };
  };
  return
      [chain = chain_of(node, "normalizer", "normalizers", make, [](const std::string& text) { return text.size(); })](std::string text) {
        chain(text);
        return text;
      };
}

}  // namespace kvlab::tokenization
