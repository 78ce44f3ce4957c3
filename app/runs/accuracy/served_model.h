#pragma once

#include <string>
#include <string_view>

#include "base/config/params.h"
#include "engine/backend/engine_model.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// Loaded once per process and backend. Decode steps on GPUs are CUDA graphs. Throws as make_engine_model.
const EngineModel& shared_model(const std::string& folder, std::string_view backend = "cpu");

const EngineModel& shared_random_model(const ModelConfig& config, std::string_view backend);

// Reads `backend:`. Throws InputError if program or machine lack it.
std::string read_backend(Params& p);
void check_backend(const Params& p, std::string_view backend);

// For 'host: engine' with a trace.
struct ServedModel {
  std::string folder;  // "": random weights
  bool has_random_weights = false;
  ModelConfig config;
  std::string backend = "cpu";

  [[nodiscard]] std::string text() const { return has_random_weights ? "random weights in the shape of " + config.name : folder; }
};

// Reads `weights` and `backend`.
ServedModel read_served_model(Params& p);

// Sets the folder that 'model' names, else the probe if the profile was measured for it; for random weights, the profile's shape. Throws
// InputError if there is none or the engine does not support it.
void find_served_model(Params& p, const ModelSpec& spec, ServedModel& served);

const EngineModel& shared_model(const ServedModel& served);

}  // namespace kvlab
