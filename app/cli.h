#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace kvlab {

// Runs the program. `arguments`: without its name. Results go to `out`, progress and one-line errors to `err`. Returns 0, 2 for a user's
// error, 1 for other errors, 130 after Ctrl-C.
int run_cli(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace kvlab
