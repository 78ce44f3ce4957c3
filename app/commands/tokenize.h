#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

namespace kvlab {

// `kvlab tokenize`: one of the two files is set, "-" is standard input. text_file: prints its ids as a JSON list, which
// `kvlab trace record --ids` reads; shows_tokens: one "id token" a line instead. ids_file, a JSON list of ids: prints their text.
struct TokenizeCommand {
  std::string model, text_file, ids_file;
  bool shows_tokens = false, without_special = false;
};
int tokenize(const TokenizeCommand& command, std::ostream& out);

// Throws InputError, with the file's name and the first byte that is not UTF-8.
void check_utf8(std::string_view text, const std::string& file);

}  // namespace kvlab
