#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/json_node.h"

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
  // Perl syntax with Unicode properties. Throws std::invalid_argument with PCRE2's message.
  static Pattern perl(const std::string& expression);
  // The key {"String": ...} or {"Regex": ...}, the latter in Oniguruma's syntax.
  static Pattern read(const JsonNode& node);

  // Cuts well-formed UTF-8 into matches, leftmost first, and the stretches between them, which are not empty; together they are the text.
  // Throws InputError where a regular expression needs more steps than PCRE2 allows.
  void cut(std::string_view text, std::vector<Slice>& slices) const;
  std::string replaced(std::string_view text, std::string_view content) const;

 private:
  struct Code;  // of PCRE2
  void cut_at_literal(std::string_view text, std::vector<Slice>& slices) const;
  void cut_at_matches(std::string_view text, std::vector<Slice>& slices) const;

  std::string source_;  // the literal, or the expression for messages
  std::shared_ptr<const Code> code_;
};

// A regular expression in Oniguruma's Ruby-like syntax, which Hugging Face tokenizers use, rewritten for PCRE2: \s \w \d become the
// properties that Oniguruma means by them. Throws std::invalid_argument for what the two read differently and no known tokenizer uses
// (back references, sets inside sets, possessive intervals, ...).
std::string perl_from_oniguruma(std::string_view expression);

}  // namespace kvlab::tokenization
