#pragma once

#include "engine/model/config.h"
#include "engine/model/json_config.h"

namespace kvlab {

// rope_theta and rope_scaling, or rope_parameters (transformers 5). Throws InputError.
void read_rope(const JsonConfig& file, ModelConfig& config);

}  // namespace kvlab
