#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/config/params.h"
#include "serving/encoders.h"
#include "sim/cost/make_cost_model.h"
#include "sim/cost/vision_encoder.h"

namespace kvlab {

struct ImagePlan {
  std::int32_t tokens_each = 0;
  VisionEncoder encoder;
};

// Nullopt if `images` is absent. Throws InputError.
std::optional<ImagePlan> read_images(Params& p);

// Each replica is one GPU.
struct EncodePoolPlan : EncodePoolSetup {
  CostSetup cost;  // only its hardware is used
  std::string link_name;
};

// Reads all keys but role and replicas. first: of a pool with the model. images: null is refused.
EncodePoolPlan read_encode_pool(Params& pool, const std::string& name, const ImagePlan* images, const CostSetup& first);

}  // namespace kvlab
