#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

namespace kvlab {

// One of two files; "-": standard input. text_file: prints ids as a JSON list, or with shows_tokens "id token" lines. ids_file (JSON list):
// prints the text.
struct TokenizeCommand {
  std::string model, text_file, ids_file;
  bool shows_tokens = false, without_special = false;
};
int tokenize(const TokenizeCommand& command, std::ostream& out);

// Throws InputError with the first byte that is not UTF-8.
void check_utf8(std::string_view text, const std::string& file);

}  // namespace kvlab
