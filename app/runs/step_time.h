#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/cost_totals.h"

namespace kvlab {

// The shares of a run's step time by part and basis (docs/results.md): {"linear": {"measured": 0.41, "roofline": 0.02}, ...}, to six
// decimals. Shares that round to 0 are left out; empty: the run had no steps.
nlohmann::ordered_json step_time_by_part(const StepShares& shares);

// One line on these shares of some runs, the largest part first: "step time: linear 52 % (measured), head 3 to 4 % (80 % roofline, 20 %
// measured)". Two numbers are the range over the runs; the bases of a part are shares of it, the mean over the runs. Parts and bases below
// 0.5 % are left out. "": no run has shares.
std::string step_time_line(const std::vector<nlohmann::ordered_json>& runs);

// The share that has this basis, of all parts.
double share_with(const StepShares& shares, Basis basis);

}  // namespace kvlab
