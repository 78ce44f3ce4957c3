#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/params.h"
#include "serving/encoders.h"
#include "sim/cost/make_cost_model.h"
#include "sim/cost/vision_encoder.h"

namespace kvlab {

// Images of an experiment: the tokens that each adds to a prompt, and the encoder that makes them.
struct ImagePlan {
  std::int32_t tokens_each = 0;
  VisionEncoder encoder;
};

// Reads `images`; none: the experiment has no such key. InputError with file:line:column.
std::optional<ImagePlan> read_images(Params& p);

// An encode pool as an experiment describes it. Each replica is one GPU.
struct EncodePoolPlan : EncodePoolSetup {
  CostSetup cost;  // its hardware; the rest is not used
  std::string link_name;
};

// Reads the keys of an encode pool except its role and replicas. first: of a pool with the model. images: null if the experiment has
// none, which is refused.
EncodePoolPlan read_encode_pool(Params& pool, const std::string& name, const ImagePlan* images, const CostSetup& first);

}  // namespace kvlab
