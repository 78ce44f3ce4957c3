#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// The known name closest to `name` in edit distance, or "" when none is close. For names that programs make, such as those of tensors.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

// The known names that a person who typed `name` may have meant, by the first of these rules that finds any:
//   the same but for case, separators and look-alikes ("H2O", "vllm-v1", "h1OO");
//   the same without organisation and variant ("meta-llama/Llama-3.1-8B-Instruct");
//   names that begin with it, at a word's end where it ends in a digit ("a100": a100-40gb, a100-80gb; "l4" is no l40s);
//   names a few letters away. Words with a digit must be equal: another number is another thing ("b200" is no h200).
std::vector<std::string> meant_names(std::string_view name, const std::vector<std::string>& known);

// "; did you mean 'x' or 'y'?" of the names meant, "" when there are none.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// The same, but "; known: a, b, c" when there are none.
std::string suggestion(std::string_view name, const std::vector<std::string>& known);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

// Strict decimal numbers: the whole text must be the number; no hex, octal, NaN or infinity. False when it is not one.
bool parse_integer(std::string_view text, long long& value);
bool parse_real(std::string_view text, double& value);

// Shortest text that reads back as the same double.
std::string number_text(double value);

}  // namespace kvlab
