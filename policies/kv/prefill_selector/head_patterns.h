#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvlab {

// How a query head's prompt attention is cut down: columns and diagonals, first and newest tokens, or blocks by their means.
struct HeadPattern {
  enum class Kind : std::uint8_t { kVerticalSlash, kAShape, kBlocks } kind = Kind::kVerticalSlash;
  std::int32_t first = 1000, second = 6096;  // columns and diagonals; first and newest tokens; blocks and nothing
};
// By layer and query head.
using HeadPatterns = std::map<std::pair<std::int32_t, std::int32_t>, HeadPattern>;

// A file in MInference's own form: a JSON list over layers of objects, the query head's index (text) to [pattern, number, number, score],
// pattern one of vertical_and_slash, stream_llm, block_sparse. InputError with the file's name and the key.
HeadPatterns read_head_patterns(const std::string& file);
// "LAYER.HEAD=pattern:number:number", separated by spaces; "" is none. InputError: what is wrong with an entry.
HeadPatterns parse_head_patterns(const std::string& text);

}  // namespace kvlab
