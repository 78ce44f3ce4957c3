#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvlab {

// The condition that a claim's measured figure must meet to be reproduced.
enum class Criterion : std::uint8_t {
  kDirection,  // on the same side of no effect
  kFactor,     // and within 2 times of the published figure
  kNumber,     // or within 10 % of it
};

// kDirection: only the side is right, or the claim asks for no more than the side.
enum class Verdict : std::uint8_t { kReproduced, kDirection, kNotReproduced };

// A published figure, or a range of figures from `value` to `to`, low end first.
struct Published {
  double value = 0, to = 0;
  std::optional<double> no_effect;  // the figure if the system changed nothing: 1 for a ratio. None: the figure has no side
  std::string unit;                 // "x" for a ratio, else written after the figure
  std::string text;                 // the quantity that the figure measures
  std::string where;                // abstract, section or table
};

// A measured figure beside a published one. Both borders count as within; a figure equal to no_effect has no side.
Verdict judge(const Published& published, Criterion counts, double ours);

const char* name_of(Criterion counts);
const char* name_of(Verdict verdict);

// "3.6x", "2-4x", "41 %"
std::string figure_text(const Published& published);
std::string figure_text(double value, const std::string& unit);

}  // namespace kvlab
