#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/json_node.h"

namespace kvlab::tokenization {

// Rewrites each token, to be joined.
using Decoder = std::function<void(std::vector<std::string>& tokens)>;

// "decoder": null (joined by spaces), ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip or a Sequence.
Decoder read_decoder(const JsonNode& node);

}  // namespace kvlab::tokenization
