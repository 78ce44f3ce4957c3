#pragma once

#include "engine/model/config.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// Throws InputError if the engine does not support the model.
ModelConfig engine_shape(const ModelSpec& spec);

}  // namespace kvlab
