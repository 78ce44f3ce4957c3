#pragma once

#include <functional>

#include "base/json_node.h"
#include "engine/tokenizer/piece.h"

namespace kvlab::tokenization {

// Changes the text to the one that is tokenized; both well-formed UTF-8.
using Normalizer = std::function<void(Piece&)>;

// The value of "normalizer": null (nothing changes), NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip or a Sequence of them.
Normalizer read_normalizer(const JsonNode& node);

}  // namespace kvlab::tokenization
