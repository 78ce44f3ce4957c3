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

// Patterns of a file, and the model that they are of.
struct PatternTable {
  HeadPatterns patterns;
  std::string file;                      // its name; "": no file
  std::int32_t layers = 0, q_heads = 0;  // q_heads: 0 where some head has no pattern
  // "" or why these are patterns of another model.
  [[nodiscard]] std::string refuses(std::int32_t num_layers, std::int32_t num_heads) const;
};

// A file in MInference's own form: a JSON list over layers of objects, the query head's index (text) to [pattern, number, number, score],
// pattern one of vertical_and_slash, stream_llm, block_sparse. InputError with the file's name and the key.
PatternTable read_head_patterns(const std::string& file);
// "LAYER.HEAD=pattern:number:number", separated by spaces; "" is none. InputError: what is wrong with an entry.
HeadPatterns parse_head_patterns(const std::string& text);
// The text that parse_head_patterns() reads.
std::string head_patterns_inline(const HeadPatterns& patterns);
// The text of such a file. found [layers * q_heads]: pattern and score, which readers pass over.
std::string head_patterns_text(const std::vector<std::pair<HeadPattern, double>>& found, std::int32_t q_heads);

// A prefill selector that `weights: FILE.json` of its recipe gives patterns to. Those that it has go before the file's.
class TakesPatterns {
 public:
  virtual ~TakesPatterns() = default;
  virtual void set_patterns(const PatternTable& table) = 0;
};

}  // namespace kvlab
