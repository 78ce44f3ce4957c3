#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/tokenizer/json_node.h"

namespace kvlab::tokenization {

// A stretch of the text on its way to becoming tokens.
struct Piece {
  std::string text;
  bool at_start = false;       // of the whole text
  std::int32_t added_id = -1;  // it is this added token; -1: none, still to be tokenized
};

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
