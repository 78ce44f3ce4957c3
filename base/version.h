#pragma once

#include <string>
#include <vector>

namespace kvlab {

// Without trailing zeros: "0.19.0rc1" -> {0, 19}; empty without a leading digit.
std::vector<int> version_numbers(const std::string& version);

}  // namespace kvlab
