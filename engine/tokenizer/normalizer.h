#pragma once

#include <functional>
#include <string>

#include "engine/tokenizer/json_node.h"

namespace kvlab::tokenization {

// From a text to the text that is tokenized; both well-formed UTF-8.
using Normalizer = std::function<std::string(std::string)>;

// The value of "normalizer": null (nothing changes), NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip or a Sequence of them.
Normalizer read_normalizer(const JsonNode& node);

}  // namespace kvlab::tokenization
