#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvlab {

enum class Criterion : std::uint8_t {
  kDirection,  // same side of no effect
  kFactor,     // and within a factor of 2
  kNumber,     // and within 10 %
};

// kDirection: only the side is right, or only the side was claimed.
enum class Verdict : std::uint8_t { kReproduced, kDirection, kNotReproduced };

// Or a range from `value` to `to`.
struct Published {
  double value = 0, to = 0;
  std::optional<double> no_effect;  // 1 for a ratio; nullopt: no side
  std::string unit;                 // "x" for a ratio, else a suffix
  std::string text;
  std::string where;  // abstract, section or table
};

// Borders count as within; a figure equal to no_effect has no side.
Verdict judge(const Published& published, Criterion counts, double ours);

const char* name_of(Criterion counts);
const char* name_of(Verdict verdict);

// "3.6x", "2-4x", "41 %".
std::string figure_text(const Published& published);
std::string figure_text(double value, const std::string& unit);

}  // namespace kvlab
