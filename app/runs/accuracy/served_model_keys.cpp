#include "app/runs/accuracy/served_model.h"

namespace kvlab {

std::string read_backend(Params& p) {
  return p.choice("backend", {"cpu", "cuda"}, 0, "what the model runs on, with 'host: engine'") == 1 ? "cuda" : "cpu";
}

ServedModel read_served_model(Params& p) {
  ServedModel served;
  served.has_random_weights = p.choice("weights", {"files", "random"}, 0,
                                       "of the model, with 'host: engine'; random: in the profile's shape, to measure times") == 1;
  served.backend = read_backend(p);
  return served;
}

}  // namespace kvlab
