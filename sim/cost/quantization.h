#pragma once

#include "base/params.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// Reads `quantization_config` of a config.json: sets the formats of the model's weights, of its KV too where the scheme says so and
// `kv_is_given` does not. The embedding, and the head unless the scheme names it, keep the model's type. InputError with its place for a
// method that is not priced and for a key that is not understood.
void read_quantization(Params& q, bool kv_is_given, ModelSpec& m);

}  // namespace kvlab
