#pragma once

#include <simdjson.h>

namespace kvlab {

// Independent of the parser's version.
inline const char* syntax_words(simdjson::error_code error) {
  switch (error) {
    case simdjson::INCOMPLETE_ARRAY_OR_OBJECT:
      return "it ends before the closing brace";
    case simdjson::UNCLOSED_STRING:
      return "a text has no closing quote";
    case simdjson::UTF8_ERROR:
      return "it is not UTF-8 text";
    case simdjson::INCORRECT_TYPE:
      return "a value is of another kind than this format has there";
    default:
      return "syntax error";
  }
}

}  // namespace kvlab
