#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// Closest in edit distance, or "". For names by programs, such as tensors.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

// Known names that a typed `name` may mean, by the first rule with a match: equal except for case, separators and look-alikes; without
// organisation and variant; a prefix; a few letters different.
std::vector<std::string> meant_names(std::string_view name, const std::vector<std::string>& known);

// Known names at most `letters` edits away: insertion, deletion, replacement, exchange of neighbours.
std::vector<std::string> names_within(std::string_view name, const std::vector<std::string>& known, std::size_t letters);

// "; did you mean 'x' or 'y'?", or "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);
// did_you_mean, else "; known: a, b, c".
std::string suggestion(std::string_view name, const std::vector<std::string>& known);
// did_you_mean for given names.
std::string offer_of(const std::vector<std::string>& meant);

// Runs of letters and digits, in lower case.
std::vector<std::string> lower_words(std::string_view text);
// ASCII letters.
std::string lower_case(std::string text);
std::string join(const std::vector<std::string>& parts, std::string_view separator);

// Strict decimal numbers; no hex, octal, NaN or infinity.
bool parse_integer(std::string_view text, long long& value);
bool parse_real(std::string_view text, double& value);
// Without trailing zeros: "0.19.0rc1" -> {0, 19}; empty without a leading digit.
std::vector<int> version_numbers(const std::string& version);

// The shortest exact text.
std::string number_text(double value);

}  // namespace kvlab
