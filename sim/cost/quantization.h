#pragma once

#include "base/config/params.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// Reads `quantization_config`: formats of weights, and of KV if the scheme has one and not `kv_is_given`. The embedding, and a head that is
// not named, keep the model's type. Throws InputError with its place for an unpriced method or unknown key.
void read_quantization(Params& q, bool kv_is_given, ModelSpec& m);

}  // namespace kvlab
