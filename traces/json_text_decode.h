#pragma once

#include <string>
#include <string_view>

namespace kvlab {

// A JSON text between its quotes, as UTF-8. Lone surrogates become U+FFFD.
std::string decode_json_text(std::string_view escaped);

// Number of code points.
std::size_t num_characters(std::string_view utf8);

}  // namespace kvlab
