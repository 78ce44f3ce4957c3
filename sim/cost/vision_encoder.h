#pragma once

#include <cstdint>
#include <string>

#include "base/params.h"
#include "serving/encoders.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/hardware_spec.h"

namespace kvlab {

// A vision transformer that encodes images for a language model (Dosovitskiy et al. 2020, arXiv:2010.11929), and the projector from its
// width to the model's. Weights and activations have 16 bits. The number of heads changes neither FLOPs nor bytes.
struct VisionEncoder {
  std::string name;
  std::int64_t layers = 0, hidden = 0, intermediate = 0;
  std::int64_t patches = 0;                                 // tokens of one pass over a tile, a class token included
  std::int64_t patch_pixels = 0;                            // side of a patch
  std::int64_t projector_params = 0, projector_tokens = 0;  // weights, and the tokens of a tile that pass them
  std::int64_t tiles = 1;  // pictures of the encoder's size that an image is cut into; each attends to itself alone

  [[nodiscard]] std::int64_t weight_bytes() const;
};

// Reads an encoder: a name in profiles/encoders, a file, or its keys. InputError with file:line:column.
VisionEncoder read_vision_encoder(Params& p, const std::string& key);

// The time of one pass over `images`, which `gpus` share evenly, each with all weights. Each GPU is priced by the roofline of its hardware
// file: for each product the longer time of its FLOPs and its bytes, and the floor of a product; attention over all patches of a tile;
// norms, sums and activation by their bytes.
StepCost encode_cost(const VisionEncoder& encoder, const HardwareSpec& hardware, std::int64_t images, int gpus = 1);

// The same of one GPU, as encode replicas need it.
EncodeWork encode_work(const VisionEncoder& encoder, const HardwareSpec& hardware, std::int64_t images);

}  // namespace kvlab
