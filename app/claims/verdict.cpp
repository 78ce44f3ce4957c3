#include "app/claims/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvlab {

namespace {

constexpr double kMostFactor = 2, kMostShare = 0.1;
constexpr double kRounding = 1e-9;  // relative: 0.1 and 1.1 are not binary fractions

int side_of(double value, double no_effect) { return value > no_effect ? 1 : value < no_effect ? -1 : 0; }

bool is_on_side(const Published& p, double ours) { return !p.no_effect || side_of(ours, *p.no_effect) == side_of(p.value, *p.no_effect); }

bool is_within(double ours, double low, double high) {
  return ours >= low - kRounding * std::abs(low) && ours <= high + kRounding * std::abs(high);
}

bool meets(const Published& p, Criterion counts, double ours) {
  if (counts == Criterion::kFactor) return is_within(ours, p.value / kMostFactor, p.to * kMostFactor);
  if (counts == Criterion::kNumber) return is_within(ours, p.value - kMostShare * std::abs(p.value), p.to + kMostShare * std::abs(p.to));
  return false;
}

// At most four digits, without trailing zeros.
std::string number(double value) { return std::abs(value) < 1e4 ? fmt::format("{:.4g}", value) : fmt::format("{:.0f}", value); }

}  // namespace

Verdict judge(const Published& published, Criterion counts, double ours) {
  if (!is_on_side(published, ours)) return Verdict::kNotReproduced;
  if (meets(published, counts, ours)) return Verdict::kReproduced;
  return published.no_effect ? Verdict::kDirection : Verdict::kNotReproduced;
}

const char* name_of(Criterion counts) {
  switch (counts) {
    case Criterion::kDirection:
      return "direction";
    case Criterion::kFactor:
      return "factor";
    case Criterion::kNumber:
      return "number";
  }
  return "";
}

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kReproduced:
      return "reproduced";
    case Verdict::kDirection:
      return "direction";
    case Verdict::kNotReproduced:
      return "not_reproduced";
  }
  return "";
}

std::string figure_text(double value, const std::string& unit) {
  const std::string rounded = number(std::stod(fmt::format("{:.3g}", value)));
  return unit == "x" || unit.empty() ? rounded + unit : rounded + " " + unit;
}

std::string figure_text(const Published& p) {
  const std::string low = number(p.value), text = p.to == p.value ? low : low + "-" + number(p.to);
  return p.unit == "x" || p.unit.empty() ? text + p.unit : text + " " + p.unit;
}

}  // namespace kvlab
