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

// Compares entries with the datasheet. One finding per table and kind: the worst, and the count.
//   error    faster than 1 / 1.02 of its FLOPs or bytes at peak rate
//   warning  the same by bytes, but possible with operands in the L2 cache, rare in serving
//   error    largest entries off the roofline by a factor of 300: wrong unit
//   warning  falls by more than a fifth as work grows
std::vector<LintFinding> lint_profile(const Profile& profile, const ModelSpec& model, const HardwareSpec& hardware);

}  // namespace kvlab
