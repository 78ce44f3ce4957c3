#pragma once

#include <cstdint>
#include <string>

#include "base/config/params.h"
#include "serving/encoders.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/hardware_spec.h"

namespace kvlab {

// Vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929) and projector to the model's width, in 16 bits. Heads do not affect cost.
struct VisionEncoder {
  std::string name;
  std::int64_t layers = 0, hidden = 0, intermediate = 0;
  std::int64_t patches = 0;                                 // per tile, with class token
  std::int64_t patch_pixels = 0;                            // side
  std::int64_t projector_params = 0, projector_tokens = 0;  // weights; per tile
  std::int64_t tiles = 1;                                   // per image; each attends to itself

  [[nodiscard]] std::int64_t weight_bytes() const;
};

// Name in profiles/encoders, file, or inline keys. Throws InputError with file:line:column.
VisionEncoder read_vision_encoder(Params& p, const std::string& key);

// One pass over `images`, shared evenly by `gpus`. Roofline per product with its floor; attention over a tile's patches; norms, sums and
// activation by bytes.
StepCost encode_cost(const VisionEncoder& encoder, const HardwareSpec& hardware, std::int64_t images, int gpus = 1);

// One GPU, for encode replicas.
EncodeWork encode_work(const VisionEncoder& encoder, const HardwareSpec& hardware, std::int64_t images);

}  // namespace kvlab
