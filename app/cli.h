#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace kvlab {

// `arguments`: without the program's name. Progress and one-line errors go to `err`. Returns 0, 2 for a user's error, 1 for other errors,
// 130 after Ctrl-C.
int run_cli(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace kvlab
