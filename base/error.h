#pragma once

#include <stdexcept>
#include <string>

namespace kvlab {

// An error the user can fix. main() prints one line and returns 2.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A bug in this program; main() returns 1.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace kvlab
