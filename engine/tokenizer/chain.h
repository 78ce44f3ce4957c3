#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/json_node.h"

namespace kvlab::tokenization {

// The node, or the flattened list `key` of a "Sequence".
std::vector<JsonNode> steps_of(const JsonNode& node, const std::string& key);

// Exactly one code point.
char32_t character_at(const JsonNode& node, const std::string& key);

// Limits output to 64 times the input (at least 4,096 bytes), against chained doublings. A step that can exceed any multiple checks before
// it allocates.
class GrowthLimit {
 public:
  // `key` is for errors.
  GrowthLimit(const JsonNode& node, const std::string& key);

  // Throws InputError.
  void check(std::size_t given, std::size_t now) const;

 private:
  std::string chain_;
};

// Part `name` of tokenizer.json: applies the steps of `make` in place and in order, limited in units of `size(value)`.
template <class Make, class Size>
auto chain_of(const JsonNode& node, const std::string& name, const std::string& key, const Make& make, const Size& size) {
  std::vector<decltype(make(node))> steps;
  for (const JsonNode& step : steps_of(node, key)) steps.push_back(make(step));
  return [steps, size, limit = GrowthLimit(node, name)](auto& value, auto... arguments) {
    const std::size_t given = size(value);
    for (const auto& step : steps) {
      step(value, arguments...);
      limit.check(given, size(value));
    }
  };
}

}  // namespace kvlab::tokenization
