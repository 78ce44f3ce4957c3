#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/tokenizer/json_node.h"

namespace kvlab::tokenization {

// The steps that a value stands for: itself, or those of a "Sequence", whose list has the name `key`, in order. A Sequence in a Sequence
// stands for its steps.
std::vector<JsonNode> steps_of(const JsonNode& node, const std::string& key);

// A chain of steps that each double a text fills any memory, so no chain may make more than 64 times of what it is given (and 4,096 bytes,
// for short texts). No known tokenizer makes more than 11 times, by the longest decomposition of NFKC.
class GrowthLimit {
 public:
  // What the chain is called in errors: `key` in the file of `node`.
  GrowthLimit(const JsonNode& node, const std::string& key);

  // Throws InputError where `now` bytes, pieces or ids came of `given`.
  void check(std::size_t given, std::size_t now) const;

 private:
  std::string chain_;
};

}  // namespace kvlab::tokenization
