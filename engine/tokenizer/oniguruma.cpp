#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>

#include "engine/tokenizer/pattern.h"

namespace kvlab::tokenization {

namespace {

bool is_script(std::string_view name) {
  try {
    Pattern::perl(fmt::format("\\p{{sc:{}}}", name));
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

// Reads an expression from left to right and writes what PCRE2 reads the same way.
class Rewriter {
 public:
  explicit Rewriter(std::string_view expression) : in_(expression) {}

  std::string rewrite() {
    while (at_ < in_.size()) {
      if (in_[at_] == '\\')
        escape();
      else if (in_[at_] == '[')
        set();
      else if (in_[at_] == '(')
        group();
      else if (in_[at_] == '{')
        interval();
      else
        out_ += in_[at_++];
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw std::invalid_argument(fmt::format("{} is not supported (at byte {} of '{}')", what, at_, in_));
  }
  bool starts(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  void copy(std::size_t bytes) {
    out_ += in_.substr(at_, bytes);
    at_ += bytes;
  }

  // PCRE2's own \s counts U+180E, its \w leaves out marks and connectors; a set inside a set is spelled without its brackets. Outside of
  // sets Oniguruma's \w has the superscript digits and fractions of Latin-1 too.
  void escape() {
    if (at_ + 1 >= in_.size()) refuse("a backslash at the end");
    const char c = in_[at_ + 1];
    const std::string_view word = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}", fractions = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
    if (c == 's' || c == 'S') return replace(c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
    if (c == 'd' || c == 'D') return replace(c == 'd' ? "\\p{Nd}" : "\\P{Nd}");
    if (c == 'w') return replace(in_set_ ? std::string(word) : fmt::format("[{}{}]", word, fractions));
    if (c == 'W' && !in_set_) return replace(fmt::format("[^{}{}]", word, fractions));
    if (c == 'p' || c == 'P') return property();
    if (c == 'x') return hexadecimal();
    const std::string_view same = in_set_ ? "nrtfae" : "nrtfaeAzZ";
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 && same.find(c) == std::string_view::npos) refuse(fmt::format("'\\{}'", c));
    copy(2);
  }
  void replace(const std::string& text) {
    out_ += text;
    at_ += 2;
  }

  // The name of a script alone means its Script_Extensions in PCRE2, its Script in Oniguruma.
  void property() {
    const std::size_t end = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || end == std::string_view::npos) refuse("a property without braces");
    const std::size_t name = in_[at_ + 3] == '^' ? at_ + 4 : at_ + 3;
    const bool has_script = is_script(in_.substr(name, end - name));
    copy(name - at_);
    if (has_script) out_ += "sc:";
    copy(end + 1 - at_);
  }

  void hexadecimal() {  // \x{1F600}, or \x7F; in Oniguruma two digits from 80 on are a byte, no character
    const auto is_hex = [&](std::size_t i) { return i < in_.size() && std::isxdigit(static_cast<unsigned char>(in_[i])) != 0; };
    if (at_ + 2 < in_.size() && in_[at_ + 2] == '{') return copy(std::min(in_.find('}', at_), in_.size() - 1) + 1 - at_);
    if (!is_hex(at_ + 2) || !is_hex(at_ + 3) || in_[at_ + 2] > '7') refuse("'\\x' without two digits below 80 or braces");
    copy(4);
  }

  void set() {
    in_set_ = true;
    copy(starts("[^") ? 2 : 1);
    if (starts("]")) refuse("']' as the first of a set");
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '[') refuse("'[' in a set");
      if (starts("&&")) refuse("'&&' in a set");
      if (in_[at_] == '\\')
        escape();
      else
        out_ += in_[at_++];
    }
    if (at_ == in_.size()) refuse("a set without an end");
    copy(1);
    in_set_ = false;
  }

  void group() {
    constexpr std::array<std::string_view, 7> kKnown{"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    if (!starts("(?") && !starts("(*")) return copy(1);
    for (const std::string_view known : kKnown) {
      if (starts(known)) return copy(known.size());
    }
    if (at_ == 0 && starts("(?i)")) return copy(4);
    refuse("a group beginning with '" + std::string(in_.substr(at_, 4)) + "'");
  }

  // {n}, {n,} and {n,m}; with a sign behind it the two libraries differ, but for the lazy {n,m}?.
  void interval() {
    std::size_t end = at_ + 1;
    while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end])) != 0) ++end;
    const bool has_min = end > at_ + 1, has_comma = end < in_.size() && in_[end] == ',';
    if (has_comma) ++end;
    while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end])) != 0) ++end;
    if (!has_min || end >= in_.size() || in_[end] != '}') refuse("'{' that begins no {n}, {n,} or {n,m}");
    const char next = end + 1 < in_.size() ? in_[end + 1] : ' ';
    if (next == '+' || (next == '?' && !has_comma)) refuse("a sign behind {n,m}");
    copy(end + 1 - at_);
  }

  std::string_view in_;
  std::size_t at_ = 0;
  bool in_set_ = false;
  std::string out_;
};

}  // namespace

std::string perl_from_oniguruma(std::string_view expression) { return Rewriter(expression).rewrite(); }

}  // namespace kvlab::tokenization
