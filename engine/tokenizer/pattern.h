#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_node.h"

namespace kvlab::tokenization {

// A match, or the text between two.
struct Slice {
  std::size_t begin = 0, end = 0;
  bool is_match = false;
};

// With `content` in place of matches.
std::size_t replaced_bytes(const std::vector<Slice>& slices, std::string_view content);
std::string replaced(std::string_view text, const std::vector<Slice>& slices, std::string_view content);

class Pattern {
 public:
  static Pattern literal(std::string text);  // not empty
  // Oniguruma syntax, as in Hugging Face tokenizers. Throws std::invalid_argument.
  static Pattern regex(const std::string& expression);
  // {"String": ...} or {"Regex": ...}.
  static Pattern read(const JsonNode& node);

  // Well-formed UTF-8 into matches, leftmost first, and non-empty text between. Throws InputError at Oniguruma's step limit.
  void cut(std::string_view text, std::vector<Slice>& slices) const;
  std::string replaced(std::string_view text, std::string_view content) const;

 private:
  struct Code;
  void cut_at_literal(std::string_view text, std::vector<Slice>& slices) const;
  void cut_at_matches(std::string_view text, std::vector<Slice>& slices) const;

  std::string source_;
  std::shared_ptr<const Code> code_;
};

}  // namespace kvlab::tokenization
