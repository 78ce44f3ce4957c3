#pragma once

#include <cstdint>

#include "base/params.h"
#include "sim/cost/model_families.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

inline constexpr std::int64_t kMaxWidth = 1 << 20;  // of a model's sizes

// Reads which layers have experts, how many and how wide, and the width of the dense MLPs. Layers and hidden width are known.
void read_mlps(Params& p, const Family& family, ModelSpec& m);

}  // namespace kvlab
