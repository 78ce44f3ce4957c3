#pragma once

#include <functional>
#include <vector>

#include "base/json_node.h"
#include "engine/tokenizer/piece.h"

namespace kvlab::tokenization {

// Cuts and rewrites pieces without added_id. Merges never cross pieces.
using PreTokenizer = std::function<void(std::vector<Piece>&)>;

// "pre_tokenizer": null, ByteLevel, Metaspace, Split, Digits or a Sequence.
PreTokenizer read_pre_tokenizer(const JsonNode& node);

// Replaces spaces and, by scheme, adds one before the text.
struct Metaspace {
  enum class Scheme { kAlways, kFirst, kNever };
  char32_t replacement = 0;
  Scheme scheme = Scheme::kAlways;
  bool splits = true;
};
Metaspace read_metaspace(const JsonNode& node);

}  // namespace kvlab::tokenization
