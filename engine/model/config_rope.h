#pragma once

#include "engine/model/config.h"
#include "engine/model/json_config.h"

namespace kvlab {

// Reads rope_theta and rope_scaling, or rope_parameters, which holds both in folders that transformers 5 wrote. Errors: a kind that
// Rotary does not compute, an unknown or missing key, a value out of range, values that contradict each other.
void read_rope(const JsonConfig& file, ModelConfig& config);

}  // namespace kvlab
