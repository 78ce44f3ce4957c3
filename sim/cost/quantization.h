#pragma once

#include "base/config/params.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// `quantization_config`: weight formats, and KV's if not `kv_is_given`. The embedding, and a head that is not named, keep the model's type.
// Throws InputError with its place if not priced or unknown.
void read_quantization(Params& q, bool kv_is_given, ModelSpec& m);

}  // namespace kvlab
