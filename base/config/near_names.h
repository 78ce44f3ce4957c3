#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// did_you_mean for given names.
std::string offer_of(const std::vector<std::string>& meant);

// Runs of letters and digits, in lower case.
std::vector<std::string> lower_words(std::string_view text);

// Known names at most `letters` edits away: insertion, deletion, replacement, exchange of neighbours.
std::vector<std::string> names_within(std::string_view name, const std::vector<std::string>& known, std::size_t letters);

}  // namespace kvlab
