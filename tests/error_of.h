#pragma once

#include <string>
#include <utility>

#include "base/error.h"

namespace kvlab {

// The message of the InputError that `act` ends with.
template <class Act>
std::string error_of(Act&& act) {
  try {
    std::forward<Act>(act)();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace kvlab
