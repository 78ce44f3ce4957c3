#pragma once

#include <simdjson.h>

namespace kvlab {

// Independent of the parser's version.
const char* syntax_words(simdjson::error_code error);

}  // namespace kvlab
