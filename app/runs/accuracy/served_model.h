#pragma once

#include <string>

#include "app/runs/accuracy/shared_model.h"
#include "base/config/params.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

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
