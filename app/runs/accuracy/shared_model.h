#pragma once

#include <string>
#include <string_view>

#include "base/config/params.h"
#include "engine/backend/engine_model.h"

namespace kvlab {

// A folder's model, loaded once per process and backend. GPU decode steps are recorded as CUDA graphs. Throws as make_engine_model.
const EngineModel& shared_model(const std::string& folder, std::string_view backend = "cpu");

// With random weights.
const EngineModel& shared_random_model(const ModelConfig& config, std::string_view backend);

// Reads `backend:`. Throws InputError with file:line:column if program or machine lack it.
std::string read_backend(Params& p);
void check_backend(const Params& p, std::string_view backend);

}  // namespace kvlab
