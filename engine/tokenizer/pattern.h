#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_node.h"

namespace kvlab::tokenization {

// Bytes of a match, or of the text between two.
struct Slice {
  std::size_t begin = 0, end = 0;
  bool is_match = false;
};

// The text with `content` in place of every match, and its length.
std::size_t replaced_bytes(const std::vector<Slice>& slices, std::string_view content);
std::string replaced(std::string_view text, const std::vector<Slice>& slices, std::string_view content);

class Pattern {
 public:
  static Pattern literal(std::string text);  // not empty
  // Oniguruma syntax, as in Hugging Face tokenizers. Throws std::invalid_argument with its message.
  static Pattern regex(const std::string& expression);
  // Reads {"String": ...} or {"Regex": ...}.
  static Pattern read(const JsonNode& node);

  // Matches, leftmost first, and the non-empty stretches between, of well-formed UTF-8. Throws InputError at Oniguruma's step limit.
  void cut(std::string_view text, std::vector<Slice>& slices) const;
  std::string replaced(std::string_view text, std::string_view content) const;

 private:
  struct Code;
  void cut_at_literal(std::string_view text, std::vector<Slice>& slices) const;
  void cut_at_matches(std::string_view text, std::vector<Slice>& slices) const;

  std::string source_;  // the literal, or the expression for messages
  std::shared_ptr<const Code> code_;
};

}  // namespace kvlab::tokenization
