#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab {

// The shares that presses drop.
inline const std::vector<std::string> kPressRatios{"0.13", "0.5", "0.77"};

// The set in which tokens of one selection compete.
enum class Pool : std::uint8_t { kRow, kSlice, kLayer, kModel };

// One press of tests/parity/kvpress/cases.py and the recipe that claims to keep the same tokens.
struct PressCase {
  std::string press;           // as the result files name it
  std::string recipe = {};     // "" is kvpress_ and the press's name
  std::string overrides = {};  // of the recipe, in addition to the budget; RATIO is replaced by the ratio, BY_RATIO by a text of `by_ratio`
  Pool pool = Pool::kRow;
  double tie = 1e-6;  // relative distance from the boundary up to which a token may fall on the other side; 0: not even equal ones
  std::int32_t slice_tokens = 0;  // of Pool::kSlice
  bool channels = false;          // the set is of channels
  std::string budget = "compression_ratio: RATIO";
  // A recipe by whose scores tokens may be exchanged with others of equal score, for presses that choose in several stages.
  std::string judge = {};
  std::vector<std::string> by_ratio = {};  // in the order of kPressRatios
};

const std::vector<PressCase>& press_cases();

}  // namespace kvlab
