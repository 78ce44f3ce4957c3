#pragma once

#include "base/config/params.h"
#include "sim/cost/model_families.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// Experts and dense MLPs. Needs m.layers and m.hidden.
void read_mlps(Params& p, const Family& family, ModelSpec& m);

}  // namespace kvlab
