#include "traces/json_text_decode.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace kvlab {

namespace {

constexpr std::uint32_t kReplacement = 0xFFFD;

void append_utf8(std::uint32_t c, std::string& to) {
  const auto tail = [&](int shift) { to += static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    to += static_cast<char>(c);
  } else if (c < 0x800) {
    to += static_cast<char>(0xC0 | c >> 6);
    tail(0);
  } else if (c < 0x10000) {
    to += static_cast<char>(0xE0 | c >> 12);
    tail(6);
    tail(0);
  } else {
    to += static_cast<char>(0xF0 | c >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

// Takes the four hex digits after "\u"; false if invalid.
bool take_code(std::string_view& text, std::uint32_t& code) {
  if (text.size() < 4) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + 4, code, 16);
  if (error != std::errc{} || end != text.data() + 4) return false;
  text.remove_prefix(4);
  return true;
}

void take_unicode(std::string_view& text, std::string& to) {
  std::uint32_t code = 0;
  if (!take_code(text, code)) return append_utf8(kReplacement, to);
  const bool is_high = code >= 0xD800 && code < 0xDC00;
  std::string_view rest = text;
  std::uint32_t low = 0;
  if (is_high && rest.starts_with("\\u") && (rest.remove_prefix(2), take_code(rest, low)) && low >= 0xDC00 && low < 0xE000) {
    text = rest;
    return append_utf8(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), to);
  }
  append_utf8(code >= 0xD800 && code < 0xE000 ? kReplacement : code, to);
}

}  // namespace

std::string decode_json_text(std::string_view escaped) {
  constexpr std::string_view kNames = "bfnrt";
  constexpr std::string_view kMeant = "\b\f\n\r\t";
  std::string text;
  text.reserve(escaped.size());
  while (!escaped.empty()) {
    const std::size_t plain = std::min(escaped.find('\\'), escaped.size());
    text += escaped.substr(0, plain);
    escaped.remove_prefix(plain);
    if (escaped.size() < 2) break;
    const char kind = escaped[1];
    escaped.remove_prefix(2);
    if (kind == 'u') {
      take_unicode(escaped, text);
      continue;
    }
    const std::size_t named = kNames.find(kind);
    text += named == std::string_view::npos ? kind : kMeant[named];
  }
  return text;
}

std::size_t num_characters(std::string_view utf8) {
  return static_cast<std::size_t>(std::ranges::count_if(utf8, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace kvlab
