#pragma once

#include <string>

#include "app/runs/shared_model.h"
#include "base/params.h"
#include "sim/cost/model_spec.h"

namespace kvlab {

// The model under 'host: engine' with a trace, and what it runs on.
struct ServedModel {
  std::string folder;  // of its files; "": random weights
  bool has_random_weights = false;
  ModelConfig config;
  std::string backend = "cpu";

  [[nodiscard]] std::string text() const { return has_random_weights ? "random weights in the shape of " + config.name : folder; }
};

// Reads `weights` and `backend`.
ServedModel read_served_model(Params& p);

// Finds the folder, which is what 'model' names or, where the profile was measured for it, the probe; of random weights the shape, the
// profile's. Error with file:line:column: no folder, a model of another shape than the profile's, a shape that the engine does not compute.
void find_served_model(Params& p, const ModelSpec& spec, ServedModel& served);

// Loaded once per program.
const EngineModel& shared_model(const ServedModel& served);

}  // namespace kvlab
