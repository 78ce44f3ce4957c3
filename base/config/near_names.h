#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// Known names at most `letters` edits away: insertion, deletion, replacement, exchange of neighbours.
std::vector<std::string> names_within(std::string_view name, const std::vector<std::string>& known, std::size_t letters);

}  // namespace kvlab
