#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/json_node.h"

namespace kvlab::tokenization {

// Puts special tokens around the ids of a text, where they are asked for.
using PostProcessor = std::function<void(std::vector<std::int32_t>& ids, bool add_special)>;

// The value of "post_processor": null, ByteLevel (which only concerns offsets), TemplateProcessing (its "single" template) or a
// Sequence of them.
PostProcessor read_post_processor(const JsonNode& node);

}  // namespace kvlab::tokenization
