#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_node.h"

namespace kvlab::tokenization {

// A part of a text, in bytes: a match of a pattern, or the text between two.
struct Slice {
  std::size_t begin = 0, end = 0;
  bool is_match = false;
};

// A text cut by Pattern::cut with `content` in the place of every match: its length, and the text.
std::size_t replaced_bytes(const std::vector<Slice>& slices, std::string_view content);
std::string replaced(std::string_view text, const std::vector<Slice>& slices, std::string_view content);

// A pattern to split texts at or to search for: a literal, or a regular expression.
class Pattern {
 public:
  static Pattern literal(std::string text);  // not empty
  // In Oniguruma's own syntax, as Hugging Face tokenizers have it. Throws std::invalid_argument with Oniguruma's message.
  static Pattern regex(const std::string& expression);
  // The key {"String": ...} or {"Regex": ...}.
  static Pattern read(const JsonNode& node);

  // Cuts well-formed UTF-8 into matches, leftmost first, and the stretches between them, which are not empty; together they are the text.
  // Throws InputError where a regular expression needs more steps than Oniguruma allows.
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
