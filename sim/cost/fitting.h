#pragma once

#include <functional>
#include <string>

#include "sim/cost/make_cost_model.h"

namespace kvlab {

// "tp: 4, or 2 x h200": fewest GPUs of this and a larger card that pass `fits`, up to 16; "": none.
std::string setups_that_fit(const CostSetup& setup, const std::function<bool(const CostSetup&)>& fits);

}  // namespace kvlab
