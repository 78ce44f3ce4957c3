#include "engine/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <stdexcept>

namespace kvlab::tokenization {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Lead {
  std::size_t length = 0;                              // of the whole sequence; 0: no lead byte
  unsigned char second_min = 0x80, second_max = 0xBF;  // Unicode 15, table 3-7
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2 || byte > 0xF4) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  return {4, 0x80, static_cast<unsigned char>(byte == 0xF4 ? 0x8F : 0xBF)};
}

bool prints_as_itself(unsigned char b) { return (b >= '!' && b <= '~') || (b >= 0xA1 && b != 0xAD); }

struct ByteCharacters {
  std::array<char32_t, 256> of_byte{};
  std::array<int, 512> of_character{};
  ByteCharacters() {
    of_character.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const char32_t code = prints_as_itself(static_cast<unsigned char>(b)) ? static_cast<char32_t>(b) : next++;
      of_byte[static_cast<std::size_t>(b)] = code;
      of_character[code] = b;
    }
  }
};

const ByteCharacters& byte_characters() {
  static const ByteCharacters table;
  return table;
}

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

Utf8Unit next_unit(std::string_view text, std::size_t at) {
  if (at >= text.size()) return {};
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.length == 1) return {byte(0), 1, true};
  if (lead.length == 0) return {0, 1, false};
  char32_t code = byte(0) & (0x7Fu >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    const unsigned char min = i == 1 ? lead.second_min : 0x80, max = i == 1 ? lead.second_max : 0xBF;
    if (at + i >= text.size() || byte(i) < min || byte(i) > max) return {0, i, false};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  return {code, lead.length, true};
}

std::size_t first_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Unit unit = next_unit(text, at);
    if (!unit.valid) return at;
    at += unit.length;
  }
  return std::string_view::npos;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Unit unit = next_unit(text, at);
    out += unit.valid ? text.substr(at, unit.length) : kReplacement;
    at += unit.length;
  }
  return out;
}

std::string utf8(char32_t code) {
  std::string text;
  append_utf8(text, code);
  return text;
}

std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

char32_t character_of_byte(unsigned char byte) { return byte_characters().of_byte[byte]; }

int byte_of_character(char32_t code) { return code < 512 ? byte_characters().of_character[code] : -1; }

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
