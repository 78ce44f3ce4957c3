#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/params.h"

namespace kvlab {

inline Params params(const std::string& yaml, const std::vector<std::string>& overrides = {}, const Choices& choices = {}) {
  return {parse_config(yaml, "run.yaml", overrides), std::make_shared<Choices>(choices), "test"};
}

// The message of the InputError that `read` ends with.
template <class Read>
std::string error_of(Read read) {
  try {
    read();
  } catch (const InputError& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace kvlab
