#pragma once

#include <string>
#include <vector>

namespace kvlab {

// The numbers of a version, without zeros at the end, so that versions compare as vectors: "0.19.0rc1" -> {0, 19}. Empty: the text does
// not begin with a digit ("nightly").
std::vector<int> version_numbers(const std::string& version);

}  // namespace kvlab
