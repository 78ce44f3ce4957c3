#pragma once

#include "engine/model/config.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// The engine's config of a model that the simulator prices, for random weights. InputError if the engine does not compute such a model.
ModelConfig engine_shape(const ModelSpec& spec);

}  // namespace kvlab
