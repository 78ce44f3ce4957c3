#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

// Hugging Face tokenizers use Unicode 9, without decomposition or order for these later characters. U+11A7: utf8proc composes it with the
// preceding syllable, against Unicode 15, section 3.12.
struct CodeRange {
  char32_t first, last;
};
constexpr std::array<CodeRange, 25> kOpaque{
    {{0x7FD, 0x7FD},     {0x898, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},
     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
     {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x107BA},
     {0x10D24, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x11A99},
     {0x11D42, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}}};

bool is_opaque(char32_t code) {
  const auto after = std::upper_bound(kOpaque.begin(), kOpaque.end(), code, [](char32_t c, const CodeRange& r) { return c < r.first; });
  return after != kOpaque.begin() && code <= std::prev(after)->last;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

utf8proc_option_t options_of(NormalForm form) {
  const bool composes = form == NormalForm::kC || form == NormalForm::kKC;
  const bool is_compatible = form == NormalForm::kKC || form == NormalForm::kKD;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (is_compatible ? UTF8PROC_COMPAT : 0));
}

std::string normal_stretch(std::string_view text, NormalForm form) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &result, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0) throw std::runtime_error(std::string("utf8proc: ") + utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(length)};
}

}  // namespace

std::string normalized(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  const auto stretch_until = [&](std::size_t end) {
    if (done < end) out += normal_stretch(text.substr(done, end - done), form);
  };
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Unit unit = next_unit(text, at);
    if (is_opaque(unit.code)) {
      stretch_until(at);
      out += text.substr(at, unit.length);
      done = at + unit.length;
    }
    at += unit.length;
  }
  stretch_until(text.size());
  return out;
}

}  // namespace kvlab::tokenization
