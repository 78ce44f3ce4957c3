#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// The known names at most so many letters away: inserted, left out, wrong, or exchanged with the next one.
std::vector<std::string> names_within(std::string_view name, const std::vector<std::string>& known, std::size_t letters);

}  // namespace kvlab
