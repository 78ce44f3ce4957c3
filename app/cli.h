#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace kvlab {

// The whole program: arguments without the program's name. Results go to `out`; errors, one line each, and progress to `err`.
// Answers the exit status: 0, 2 for what the user can mend, 1 for anything else, 130 after Ctrl-C.
int run_cli(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace kvlab
