#pragma once

#include <iosfwd>
#include <string>

namespace kvlab {

// `kvlab tokenize`: one of the two files is set, "-" is standard input. text_file: prints its ids as a JSON list, which
// `kvlab trace record --ids` reads; shows_tokens: one "id token" a line instead. ids_file, a JSON list of ids: prints their text.
struct TokenizeCommand {
  std::string model, text_file, ids_file;
  bool shows_tokens = false, without_special = false;
};
int tokenize(const TokenizeCommand& command, std::ostream& out);

}  // namespace kvlab
