#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab {

// The set in which tokens of one selection compete.
enum class Pool : std::uint8_t { kRow, kSlice, kLayer, kModel };

// One press of tests/parity/kvpress/cases.py and the recipe that claims to keep the same tokens.
struct PressCase {
  std::string press;           // as the result files name it
  std::string recipe = {};     // without "kvpress_"; "" is the press's name
  std::string overrides = {};  // of the recipe, beside compression_ratio; RATIO is replaced by the ratio
  Pool pool = Pool::kRow;
  double tie = 1e-6;  // relative distance from the boundary up to which a token may fall on the other side; 0: not even equal ones
  std::int32_t slice_tokens = 0;  // of Pool::kSlice
  std::int32_t block_tokens = 0;  // the prefill's first chunk is the budget, the others have this size
  bool channels = false;          // the set is of channels
};

const std::vector<PressCase>& press_cases();

}  // namespace kvlab
