#pragma once

#include <string>

namespace kvlab {

// "PATH: cannot be opened: No such file or directory; did you mean 'NEAR'?". Call right after the attempt (reads errno).
std::string open_error(const std::string& path);

}  // namespace kvlab
