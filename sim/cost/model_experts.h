#pragma once

#include "base/params.h"
#include "sim/cost/model_families.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// Reads which layers have experts, how many and how wide, and the width of the dense MLPs. Layers and hidden width are known.
void read_mlps(Params& p, const Family& family, ModelSpec& m);

}  // namespace kvlab
