#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json_node.h"
#include "engine/tokenizer/piece.h"

namespace kvlab::tokenization {

// "normalizer": null, NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip or a Sequence. Input and output are well-formed UTF-8.
using Normalizer = std::function<void(Piece&)>;
Normalizer read_normalizer(const JsonNode& node);

// "pre_tokenizer": null, ByteLevel, Metaspace, Split, Digits or a Sequence. Cuts and rewrites pieces without added_id. Merges never cross
// pieces.
using PreTokenizer = std::function<void(std::vector<Piece>&)>;
PreTokenizer read_pre_tokenizer(const JsonNode& node);

// "post_processor": null, ByteLevel (only offsets), TemplateProcessing ("single") or a Sequence. Adds special tokens around the ids.
using PostProcessor = std::function<void(std::vector<std::int32_t>& ids, bool add_special)>;
PostProcessor read_post_processor(const JsonNode& node);

// "decoder": null (joined by spaces), ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip or a Sequence. Rewrites each token, to be
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

}  // namespace kvlab::tokenization
