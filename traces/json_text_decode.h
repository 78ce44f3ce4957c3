#pragma once

#include <string>
#include <string_view>

namespace kvlab {

// Text between quotes, as UTF-8. Lone surrogates become U+FFFD.
std::string decode_json_text(std::string_view escaped);

// Code points.
std::size_t num_characters(std::string_view utf8);

}  // namespace kvlab
