#pragma once

#include <simdjson.h>

namespace kvlab {

// The parser's error, in words that do not change with its version.
const char* syntax_words(simdjson::error_code error);

}  // namespace kvlab
