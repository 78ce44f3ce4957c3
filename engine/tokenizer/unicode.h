#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvlab::tokenization {

// The code at one place of a text that claims to be UTF-8. If it is ill-formed, length is that of the longest prefix of a well-formed
// sequence, at least 1: the bytes that one U+FFFD replaces (Unicode 15, section 3.9, "maximal subpart").
struct Utf8Unit {
  char32_t code = 0;
  std::size_t length = 0;
  bool valid = false;
};
Utf8Unit next_unit(std::string_view text, std::size_t at);

// Offset of the first byte that is not UTF-8 (overlong forms and surrogates are none), or npos.
std::size_t first_invalid_utf8(std::string_view text);

// Each ill-formed piece becomes one U+FFFD.
std::string valid_utf8(std::string_view text);

void append_utf8(std::string& text, char32_t code);
std::string utf8(char32_t code);

// Offset where the last character of a non-empty, well-formed text begins.
std::size_t last_character(std::string_view text);

bool is_white_space(char32_t code);  // the Unicode property White_Space

enum class NormalForm { kC, kD, kKC, kKD };
// Unicode normalization of well-formed text, as of Unicode 9: what Hugging Face tokenizers do.
std::string normalized(std::string_view text, NormalForm form);

// Byte-level BPE writes each byte as a printable character (Radford et al. 2019, GPT-2): itself where it prints, else 256 and on.
char32_t character_of_byte(unsigned char byte);
int byte_of_character(char32_t code);  // -1: no byte

}  // namespace kvlab::tokenization
