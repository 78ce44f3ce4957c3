#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/json_node.h"

namespace kvlab::tokenization {

// Adds special tokens around the ids.
using PostProcessor = std::function<void(std::vector<std::int32_t>& ids, bool add_special)>;

// "post_processor": null, ByteLevel (only offsets), TemplateProcessing ("single") or a Sequence.
PostProcessor read_post_processor(const JsonNode& node);

}  // namespace kvlab::tokenization
