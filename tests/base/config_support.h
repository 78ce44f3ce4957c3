#pragma once

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "tests/error_of.h"

namespace kvlab {

inline Params params(const std::string& yaml, const std::vector<std::string>& overrides = {}, const Choices& choices = {}) {
  return {parse_config(yaml, "run.yaml", overrides), std::make_shared<Choices>(choices), "test"};
}

}  // namespace kvlab
