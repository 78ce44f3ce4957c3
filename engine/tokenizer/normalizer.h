#pragma once

#include <functional>

#include "base/json_node.h"
#include "engine/tokenizer/piece.h"

namespace kvlab::tokenization {

// Input and output are well-formed UTF-8.
using Normalizer = std::function<void(Piece&)>;

// "normalizer": null, NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip or a Sequence.
Normalizer read_normalizer(const JsonNode& node);

}  // namespace kvlab::tokenization
