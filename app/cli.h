#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace kvlab {

// The whole program: arguments without the program's name. Results go to `out`; errors, one line each, and progress to `err`. Returns the
// exit status: 0, 2 for errors that the user can fix, 1 for others, 130 after Ctrl-C.
int run_cli(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace kvlab
