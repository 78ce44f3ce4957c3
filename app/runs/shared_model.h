#pragma once

#include <string>
#include <string_view>

#include "base/params.h"
#include "engine/backend/engine_model.h"

namespace kvlab {

// The model of a folder on a backend, loaded once per program: runs of an experiment share it. On a GPU decode steps are recorded as CUDA
// graphs. Errors as make_engine_model.
const EngineModel& shared_model(const std::string& folder, std::string_view backend = "cpu");

// The same of a model with random weights, of this name and shape.
const EngineModel& shared_random_model(const ModelConfig& config, std::string_view backend);

// Reads `backend:`. Error with file:line:column: this program or this machine does not have it.
std::string read_backend(Params& p);
void check_backend(const Params& p, std::string_view backend);

}  // namespace kvlab
