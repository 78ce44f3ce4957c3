#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvlab::tokenization {

// If ill-formed, length is what one U+FFFD replaces (Unicode 15, section 3.9, "maximal subpart"), at least 1.
struct Utf8Unit {
  char32_t code = 0;
  std::size_t length = 0;
  bool valid = false;
};
Utf8Unit next_unit(std::string_view text, std::size_t at);

// Overlong forms and surrogates are invalid; npos: none.
std::size_t first_invalid_utf8(std::string_view text);

// Each ill-formed piece becomes one U+FFFD.
std::string valid_utf8(std::string_view text);

void append_utf8(std::string& text, char32_t code);
std::string utf8(char32_t code);

// Offset in non-empty, well-formed text.
std::size_t last_character(std::string_view text);

bool is_white_space(char32_t code);  // property White_Space

enum class NormalForm { kC, kD, kKC, kKD };
// By Unicode 9, as in Hugging Face tokenizers.
std::string normalized(std::string_view text, NormalForm form);

// GPT-2 (Radford et al. 2019): itself if printable, else from 256 on.
char32_t character_of_byte(unsigned char byte);
int byte_of_character(char32_t code);  // -1: no byte

}  // namespace kvlab::tokenization
