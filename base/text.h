#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// The known name closest to `name` in edit distance, or "" when none is close enough to be a misspelling of it.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

// "; did you mean 'x'?", or "; known: a, b, c" when nothing is near.
std::string suggestion(std::string_view name, const std::vector<std::string>& known);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

// Strict decimal numbers: the whole text must be the number; no hex, octal, NaN or infinity. False when it is not one.
bool parse_integer(std::string_view text, long long& value);
bool parse_real(std::string_view text, double& value);

// Shortest text that reads back as the same double.
std::string number_text(double value);

}  // namespace kvlab
