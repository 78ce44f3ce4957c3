#pragma once

#include <string>
#include <string_view>

namespace kvlab {

// The content of a JSON text between its quotes, as UTF-8. Escapes that are no Unicode character (half of a surrogate pair, as data sets
// cut from web pages have them) become U+FFFD.
std::string decode_json_text(std::string_view escaped);

// Unicode characters of UTF-8 text.
std::size_t num_characters(std::string_view utf8);

}  // namespace kvlab
