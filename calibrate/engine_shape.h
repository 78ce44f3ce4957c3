#pragma once

#include "engine/model/config.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// The engine's config for a simulated model. Throws InputError if the engine does not support it.
ModelConfig engine_shape(const ModelSpec& spec);

}  // namespace kvlab
