#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "app/runs/plan/serving_plan.h"
#include "sim/cost_totals.h"

namespace kvlab {

// By part and basis (docs/results.md): {"linear": {"measured": 0.41, "roofline": 0.02}, ...}, six decimals, no zeros.
nlohmann::ordered_json step_time_by_part(const StepShares& shares);

// Largest part first: "step time: linear 52 % (measured), head 3 to 4 % (80 % roofline, 20 % measured)". Ranges are over runs; bases are
// mean shares of the part. Omits shares below 0.5 %. "": none.
std::string step_time_line(const std::vector<nlohmann::ordered_json>& runs);

// If the KV policy's operations exceed 10 % of step time, else "". `name`: the recipe.
std::string remark_on_policy(const StepShares& shares, const std::string& name);

double share_with(const StepShares& shares, Basis basis);

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
