#pragma once

#include <string>

#include "app/runs/serving_plan.h"
#include "sim/cost_totals.h"

namespace kvlab {

// The source of step times, for the label and the manifest: profile, its date and hash. With several pools each source is named with the
// pools that have it.
std::string describe_cost_source(const ServingPlan& plan);
std::string describe_cost_source(const PoolPlan& pool);
// A remark where the datasheet alone prices collectives that take more than a tenth of step time, with what to add; else "".
std::string remark_on_collectives(const CostSetup& cost, const StepShares& shares);
// A remark where the roofline prices more than a tenth of step time with tp > 1; else "".
std::string remark_on_roofline(const CostSetup& cost, const StepShares& shares);
// The goals that the calibration of a pool's profile missed; "": none, or it was not measured by kvlab.
std::string calibration_failure_of(const ServingPlan& plan);

}  // namespace kvlab
