#include "engine/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "base/error.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

PCRE2_SPTR bytes_of(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string pcre2_message(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct FreeMatch {
  void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
};

}  // namespace

struct Pattern::Code {
  explicit Code(pcre2_code* compiled) : pcre2(compiled) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(pcre2); }
  pcre2_code* pcre2;
};

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.source_ = std::move(text);
  return pattern;
}

Pattern Pattern::perl(const std::string& expression) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(bytes_of(expression), expression.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) throw std::invalid_argument(fmt::format("{} (at byte {} of '{}')", pcre2_message(error), offset, expression));
  Pattern pattern;
  pattern.source_ = expression;
  pattern.code_ = std::make_shared<const Code>(code);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where it fails, matching is interpreted
  return pattern;
}

Pattern Pattern::read(const JsonNode& node) {
  if (node.has("String")) {
    const std::string text = node.text("String");
    if (text.empty()) node.at("String").fail_value("a text that is not empty");
    return literal(text);
  }
  if (!node.has("Regex")) node.fail_value("{\"String\": ...}, {\"Regex\": ...}");
  try {
    return perl(perl_from_oniguruma(node.text("Regex")));
  } catch (const std::invalid_argument& e) {
    node.at("Regex").fail(e.what());
  }
}

std::size_t replaced_bytes(const std::vector<Slice>& slices, std::string_view content) {
  std::size_t bytes = 0;
  for (const Slice& slice : slices) bytes += slice.is_match ? content.size() : slice.end - slice.begin;
  return bytes;
}

std::string replaced(std::string_view text, const std::vector<Slice>& slices, std::string_view content) {
  std::string out;
  out.reserve(replaced_bytes(slices, content));
  for (const Slice& slice : slices) out += slice.is_match ? content : text.substr(slice.begin, slice.end - slice.begin);
  return out;
}

void Pattern::cut(std::string_view text, std::vector<Slice>& slices) const {
  slices.clear();
  if (text.empty()) return;  // an expression that matches nothing (^) does not match in it either, as in Hugging Face tokenizers
  if (code_)
    cut_at_matches(text, slices);
  else
    cut_at_literal(text, slices);
  const std::size_t done = slices.empty() ? 0 : slices.back().end;
  if (done != text.size()) slices.push_back({done, text.size(), false});
}

void Pattern::cut_at_literal(std::string_view text, std::vector<Slice>& slices) const {
  std::size_t done = 0;
  for (std::size_t at = text.find(source_); at != std::string_view::npos; at = text.find(source_, done)) {
    if (at != done) slices.push_back({done, at, false});
    done = at + source_.size();
    slices.push_back({at, done, true});
  }
}

void Pattern::cut_at_matches(std::string_view text, std::vector<Slice>& slices) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> data(pcre2_match_data_create(1, nullptr));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
  std::size_t done = 0;
  for (std::size_t from = 0; from <= text.size();) {
    int found = pcre2_match(code_->pcre2, bytes_of(text), text.size(), from, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(code_->pcre2, bytes_of(text), text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0)
      throw InputError(
          fmt::format("the tokenizer's expression '{}' fails at byte {} of the text: {}", source_, from, pcre2_message(found)));
    // Only an assertion can let a match end before its begin or begin before `from` (\K, which is refused).
    const bool is_empty = range[0] == range[1];
    if (is_empty && range[0] == done && done > 0) {  // right behind the match before: Oniguruma's iterator steps over it
      from = range[0] + std::max<std::size_t>(1, next_unit(text, range[0]).length);
      continue;
    }
    if (range[0] != done) slices.push_back({done, range[0], false});
    slices.push_back({range[0], range[1], true});
    done = range[1];
    from = is_empty ? done + std::max<std::size_t>(1, next_unit(text, done).length) : done;
  }
}

std::string Pattern::replaced(std::string_view text, std::string_view content) const {
  std::vector<Slice> slices;
  cut(text, slices);
  return tokenization::replaced(text, slices, content);
}

}  // namespace kvlab::tokenization
