#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_node.h"

namespace kvlab::tokenization {

// Rewritten text comes from the last original character that it replaces, or the next one if put in front. Metaspace ("first") asks if a
// piece comes from the first, as Hugging Face tokenizers do (`offsets_original().0 == 0`).
struct Piece {
  std::string text;
  bool at_start = false;        // from the first character when cut
  std::size_t first_bytes = 0;  // leading bytes from the first character
  std::int32_t added_id = -1;   // -1: still to be tokenized

  static Piece whole(std::string text, std::size_t first_bytes) { return {std::move(text), true, first_bytes, -1}; }

  [[nodiscard]] Piece part(std::size_t begin, std::size_t end) const {
    const std::size_t first = std::min(std::max(first_bytes, begin), end) - begin;
    return {text.substr(begin, end - begin), first > 0, first, -1};
  }

  void put_in_front(const std::string& prefix) {
    text.insert(0, prefix);
    if (first_bytes > 0) first_bytes += prefix.size();
  }
};

// "normalizer": null, NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip or a Sequence. Well-formed UTF-8.
using Normalizer = std::function<void(Piece&)>;
Normalizer read_normalizer(const JsonNode& node);

// "pre_tokenizer": null, ByteLevel, Metaspace, Split, Digits or a Sequence. Cuts and rewrites pieces without added_id. Merges never cross
// pieces.
using PreTokenizer = std::function<void(std::vector<Piece>&)>;
PreTokenizer read_pre_tokenizer(const JsonNode& node);

// "post_processor": null, ByteLevel (only offsets), TemplateProcessing ("single") or a Sequence. Adds special tokens.
using PostProcessor = std::function<void(std::vector<std::int32_t>& ids, bool add_special)>;
PostProcessor read_post_processor(const JsonNode& node);

// "decoder": null (joined by spaces), ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip or a Sequence. Rewrites tokens, to be
// joined.
using Decoder = std::function<void(std::vector<std::string>& tokens)>;
Decoder read_decoder(const JsonNode& node);

// Replaces spaces and, by scheme, adds one before the text.
struct Metaspace {
  enum class Scheme { kAlways, kFirst, kNever };
  char32_t replacement = 0;
  Scheme scheme = Scheme::kAlways;
  bool splits = true;
};
Metaspace read_metaspace(const JsonNode& node);

// The node, or the flattened list `key` of a "Sequence".
std::vector<JsonNode> steps_of(const JsonNode& node, const std::string& key);

// Exactly one code point.
char32_t character_at(const JsonNode& node, const std::string& key);

// Limits output to 64 times the input (at least 4,096 bytes), against chained doublings. A step that can exceed any multiple checks before
// it allocates.
class GrowthLimit {
 public:
  // `key` is for errors.
  GrowthLimit(const JsonNode& node, const std::string& key);

  // Throws InputError.
  void check(std::size_t given, std::size_t now) const;

 private:
  std::string chain_;
};

// Part `name` of tokenizer.json: applies the steps of `make` in place and in order, limited in units of `size(value)`.
template <class Make, class Size>
auto chain_of(const JsonNode& node, const std::string& name, const std::string& key, const Make& make, const Size& size) {
  std::vector<decltype(make(node))> steps;
  for (const JsonNode& step : steps_of(node, key)) steps.push_back(make(step));
  return [steps, size, limit = GrowthLimit(node, name)](auto& value, auto... arguments) {
    const std::size_t given = size(value);
    for (const auto& step : steps) {
      step(value, arguments...);
      limit.check(given, size(value));
    }
  };
}

}  // namespace kvlab::tokenization
