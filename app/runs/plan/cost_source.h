#pragma once

#include <string>

#include "app/runs/plan/serving_plan.h"
#include "sim/cost_totals.h"

namespace kvlab {

// Profile, date and hash, with pool names if several.
std::string describe_cost_source(const ServingPlan& plan);
std::string describe_cost_source(const PoolPlan& pool);
// Advice if only the datasheet prices collectives above 10 % of step time, else "".
std::string remark_on_collectives(const CostSetup& cost, const StepShares& shares);
// If ranks span machines and the card has no network rate, else "".
std::string remark_on_network(const CostSetup& cost);
// If tp > 1 and the roofline prices over 10 % of step time, else "".
std::string remark_on_roofline(const CostSetup& cost, const StepShares& shares);
// Calibration goals missed by a pool's profile; "": none, or not measured by kvlab.
std::string calibration_failure_of(const ServingPlan& plan);

}  // namespace kvlab
