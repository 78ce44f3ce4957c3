#pragma once

#include <functional>
#include <vector>

#include "base/json_node.h"
#include "engine/tokenizer/piece.h"

namespace kvlab::tokenization {

// Cuts and rewrites the pieces that are no added tokens. Merges never cross pieces.
using PreTokenizer = std::function<void(std::vector<Piece>&)>;

// The value of "pre_tokenizer": null, ByteLevel, Metaspace, Split, Digits or a Sequence of them.
PreTokenizer read_pre_tokenizer(const JsonNode& node);

// Metaspace writes spaces as another character, and by its scheme one before the text. The decoder reads the same keys.
struct Metaspace {
  enum class Scheme { kAlways, kFirst, kNever };
  char32_t replacement = 0;
  Scheme scheme = Scheme::kAlways;
  bool splits = true;
};
Metaspace read_metaspace(const JsonNode& node);

}  // namespace kvlab::tokenization
