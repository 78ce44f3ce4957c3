#pragma once

#include <string>
#include <string_view>

#include "base/config/params.h"
#include "engine/backend/engine_model.h"

namespace kvlab {

// Loaded once per process and backend. Decode steps on GPUs are CUDA graphs. Throws as make_engine_model.
const EngineModel& shared_model(const std::string& folder, std::string_view backend = "cpu");

const EngineModel& shared_random_model(const ModelConfig& config, std::string_view backend);

// Reads `backend:`. Throws InputError if program or machine lack it.
std::string read_backend(Params& p);
void check_backend(const Params& p, std::string_view backend);

}  // namespace kvlab
