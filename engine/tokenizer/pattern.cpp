#include "engine/tokenizer/pattern.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "base/error.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

const OnigUChar* bytes_of(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

std::string message_of(int error, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  onig_error_code_to_str(text.data(), error, info);
  return reinterpret_cast<const char*>(text.data());
}

struct FreeRegion {
  void operator()(OnigRegion* region) const noexcept { onig_region_free(region, 1); }
};

}  // namespace

struct Pattern::Code {
  explicit Code(const std::string& expression) {
    static OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    static const int started = onig_initialize(&utf8, 1);
    OnigErrorInfo info{};
    const OnigUChar *begin = bytes_of(expression), *end = begin + expression.size();
    const int error = started != ONIG_NORMAL ? started : onig_new(&regex, begin, end, ONIG_OPTION_NONE, utf8, ONIG_SYNTAX_DEFAULT, &info);
    if (error != ONIG_NORMAL) throw std::invalid_argument(fmt::format("{} (in '{}')", message_of(error, &info), expression));
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { onig_free(regex); }
  regex_t* regex = nullptr;
};

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.source_ = std::move(text);
  return pattern;
}

Pattern Pattern::regex(const std::string& expression) {
  Pattern pattern;
  pattern.source_ = expression;
  pattern.code_ = std::make_shared<const Code>(expression);
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
    return regex(node.text("Regex"));
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
  if (text.empty()) return;  // empty matches (^) are not found here, as in Hugging Face tokenizers
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
  const std::unique_ptr<OnigRegion, FreeRegion> region(onig_region_new());
  const OnigUChar *begin = bytes_of(text), *end = begin + text.size();
  std::size_t done = 0;
  for (std::size_t from = 0; from <= text.size();) {
    const int found = onig_search(code_->regex, begin, end, begin + from, end, region.get(), ONIG_OPTION_NONE);
    if (found == ONIG_MISMATCH) break;
    if (found < 0)
      throw InputError(fmt::format("the tokenizer's expression '{}' fails at byte {} of the text: {}", source_, from, message_of(found)));
    const auto first = static_cast<std::size_t>(region->beg[0]), last = static_cast<std::size_t>(region->end[0]);
    const bool is_empty = first == last;
    if (is_empty && first == done && done > 0) {  // skipped, as by the library's iterator
      from = first + std::max<std::size_t>(1, next_unit(text, first).length);
      continue;
    }
    if (first != done) slices.push_back({done, first, false});
    slices.push_back({first, last, true});
    done = last;
    from = is_empty ? done + std::max<std::size_t>(1, next_unit(text, done).length) : done;
  }
}

std::string Pattern::replaced(std::string_view text, std::string_view content) const {
  std::vector<Slice> slices;
  cut(text, slices);
  return tokenization::replaced(text, slices, content);
}

}  // namespace kvlab::tokenization
