#pragma once

#include <string>

namespace kvlab {

// "PATH: cannot be opened: No such file or directory; did you mean 'NEAR'?": why, as the system says, and the path that exists with the
// nearest names in place of those that do not, if any. For a file that was just tried.
std::string open_error(const std::string& path);

}  // namespace kvlab
