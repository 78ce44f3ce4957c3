#pragma once

#include <stdexcept>
#include <string>

namespace kvlab {

// Something the user can mend: a config key, a file, a row. main() prints it as one line and returns 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A broken promise of our own code, found at run time. main() prints it and returns 1.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace kvlab
