#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json_node.h"

namespace kvlab::tokenization {

// Replaces each token's text by its decoded form; joined, these are the decoded text.
using Decoder = std::function<void(std::vector<std::string>& tokens)>;

// The value of "decoder": null (tokens are joined by spaces), ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip or a Sequence of
// them.
Decoder read_decoder(const JsonNode& node);

}  // namespace kvlab::tokenization
