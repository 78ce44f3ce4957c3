#pragma once

#include <string>

#include "app/runs/plan/serving_plan.h"
#include "sim/cost_totals.h"

namespace kvlab {

// Source of step times: profile, date and hash, with the pool names if several.
std::string describe_cost_source(const ServingPlan& plan);
std::string describe_cost_source(const PoolPlan& pool);
// Remark, with advice, if only the datasheet prices collectives above 10 % of step time; else "".
std::string remark_on_collectives(const CostSetup& cost, const StepShares& shares);
// Remark if ranks span machines and the card has no network rate; else "".
std::string remark_on_network(const CostSetup& cost);
// Remark if tp > 1 and the roofline prices over 10 % of step time; else "".
std::string remark_on_roofline(const CostSetup& cost, const StepShares& shares);
// Calibration goals that a pool's profile missed; "": none, or not measured by kvlab.
std::string calibration_failure_of(const ServingPlan& plan);

}  // namespace kvlab
