#pragma once

#include <string>
#include <vector>

#include "sim/cost/hardware_spec.h"
#include "sim/cost/profile.h"

namespace kvlab {

// An impossible or unlikely entry in a profile's tables.
struct LintFinding {
  enum class Severity : std::uint8_t { kWarning, kError } severity;
  std::string text;  // one line: table, point, error, number of similar ones
};

// Compares every entry with the datasheet:
//   error    faster than 1 / 1.02 of the time that its FLOPs or bytes need at peak rate
//   warning  the same by bytes, where it could be if as many as fit in the L2 cache were there before: a repeated measurement
//            may find them there, serving, which runs other layers in between, rarely will
//   error    a table's largest entries 300 times slower or faster than the roofline: a wrong unit
//   warning  a time that falls by more than a fifth where the work grows
// One finding per table and kind, with the worst entry and the number of entries.
std::vector<LintFinding> lint_profile(const Profile& profile, const ModelSpec& model, const HardwareSpec& hardware);

}  // namespace kvlab
