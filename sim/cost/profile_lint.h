#pragma once

#include <string>
#include <vector>

#include "sim/cost/hardware_spec.h"
#include "sim/cost/profile.h"

namespace kvlab {

struct LintFinding {
  enum class Severity : std::uint8_t { kWarning, kError } severity;
  std::string text;  // table, point, error, number of similar ones
};

// Compares entries with the datasheet; per table and kind the worst, and the count. Errors: faster than the peak rates, or a wrong unit.
// Warnings: fast by operands in the L2 cache, or falls as work grows.
std::vector<LintFinding> lint_profile(const Profile& profile, const ModelSpec& model, const HardwareSpec& hardware);

}  // namespace kvlab
