#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvlab {

// Sparse prompt attention: columns and diagonals, first and newest tokens, or blocks by mean.
struct HeadPattern {
  enum class Kind : std::uint8_t { kVerticalSlash, kAShape, kBlocks } kind = Kind::kVerticalSlash;
  std::int32_t first = 1000, second = 6096;  // columns, diagonals; first, newest tokens; blocks, unused
};
// By layer and query head.
using HeadPatterns = std::map<std::pair<std::int32_t, std::int32_t>, HeadPattern>;

struct PatternTable {
  HeadPatterns patterns;
  std::string file;
  std::int32_t layers = 0, q_heads = 0;  // q_heads 0: some head has no pattern
  [[nodiscard]] std::string refuses(std::int32_t num_layers, std::int32_t num_heads) const;
};

// MInference's JSON: a list over layers of {query head (text): [pattern, number, number, score]}, pattern one of vertical_and_slash,
// stream_llm, block_sparse. Throws InputError with file and key.
PatternTable read_head_patterns(const std::string& file);
// "LAYER.HEAD=pattern:number:number ..."; "": none. Throws InputError.
HeadPatterns parse_head_patterns(const std::string& text);
std::string head_patterns_inline(const HeadPatterns& patterns);
// JSON. found [layers * q_heads]: pattern and score, which readers ignore.
std::string head_patterns_text(const std::vector<std::pair<HeadPattern, double>>& found, std::int32_t q_heads);

}  // namespace kvlab
