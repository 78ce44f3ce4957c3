#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/json_node.h"

namespace kvlab::tokenization {

// The steps of a value: itself, or those of a "Sequence", whose list has the name `key`, in order. A Sequence in a Sequence is replaced by
// its steps.
std::vector<JsonNode> steps_of(const JsonNode& node, const std::string& key);

// The value of `key`, a text of exactly one code point.
char32_t character_at(const JsonNode& node, const std::string& key);

// A chain of steps that each double a text fills any memory, so no chain may make more than 64 times its input (and 4,096 bytes, for short
// texts). No known tokenizer makes more than 11 times, by the longest decomposition of NFKC. A step that alone can exceed any multiple has
// such a limit too, and checks it before it makes anything.
class GrowthLimit {
 public:
  // The chain's name in errors is `key` in the file of `node`.
  GrowthLimit(const JsonNode& node, const std::string& key);

  // Throws InputError where `now` bytes, pieces or ids came of `given`.
  void check(std::size_t given, std::size_t now) const;

 private:
  std::string chain_;
};

// The function that a part of tokenizer.json (`name`, such as "decoder") applies to a value: its steps in order, each made of its node by
// `make` and changing the value in place, held to the limit in units of `size(value)`. Further arguments go to every step.
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
