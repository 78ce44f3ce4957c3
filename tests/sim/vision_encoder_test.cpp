#include "sim/cost/vision_encoder.h"

#include "base/config/spec_file.h"
#include "tests/error_of.h"
#include "tests/has_all.h"

namespace kvlab::testing {
namespace {

VisionEncoder shipped(const std::string& name) {
  Params p = Params::from_text("{encoder: " + name + "}");
  return read_vision_encoder(p, "encoder");
}

HardwareSpec card(const std::string& name) { return load_hardware_spec(name, profiles_folder() + "/hardware"); }

// PyTorch Image Models lists 304.5 M parameters and 191.1 G multiply-adds for ViT-L/14 of CLIP at 336 pixels
// (vit_large_patch14_clip_336). Ours leaves out norms and biases, and has LLaVA's projector of 21.0 M parameters over 576 tokens.
TEST(VisionEncoder, ClipHasThePublishedSizeAndWork) {
  const VisionEncoder clip = shipped("clip-vit-l-14-336");
  const double params = static_cast<double>(clip.weight_bytes()) / 2 - static_cast<double>(clip.projector_params);
  EXPECT_NEAR(params, 304.5e6, 0.01 * 304.5e6);
  const double flops = static_cast<double>(encode_cost(clip, card("a100-80gb"), 1).flops);
  EXPECT_NEAR(flops / 2 - 576.0 * 20971520, 191.1e9, 0.01 * 191.1e9);
}

// A card without floors whose kernels reach 100 TFLOP/s, with enough bandwidth that FLOPs decide: 2 layers of 8 wide over 4 patches.
TEST(VisionEncoder, TimeIsThatOfItsOperations) {
  HardwareSpec h;
  h.fp16_flops = 1e6;
  h.flops_frac = h.bandwidth_frac = 1;
  h.memory_bytes_per_s = 1e15;
  VisionEncoder e;
  e.layers = 2;
  e.hidden = 8;
  e.intermediate = 16;
  e.patches = 4;
  e.patch_pixels = 2;
  e.tiles = 3;
  // A tile: 2 x 4 x 12 x 8 of the patches, and in each layer 2 x 4 x (4 x 64 + 2 x 128) and 4 x 16 x 8 of attention.
  const std::int64_t tile = 768 + 2 * (4096 + 512);
  const StepCost one = encode_cost(e, h, 1);
  EXPECT_EQ(one.flops, 3 * tile);
  EXPECT_NEAR(to_s(one.total), static_cast<double>(3 * tile) / 1e6, 1e-6);
  EXPECT_EQ(one.of(CostPart::kLinear), one.total);
  EXPECT_EQ(encode_cost(e, h, 5, 2).total, encode_cost(e, h, 3).total) << "two GPUs share five images";
  EXPECT_EQ(encode_cost(e, h, 5, 2).flops, 5 * 3 * tile);
  h.linear_floor_ns = 1000;
  EXPECT_NEAR(to_s(encode_cost(e, h, 1).total - one.total), (1 + 2 * 4) * 1e-6, 1e-9);
}

TEST(VisionEncoder, MissingAndNegativeKeysAreRefused) {
  const auto error = [](const std::string& keys) { return error_of([&] { shipped(keys); }); };
  EXPECT_THAT(error("{hidden: 8}"), HasSubstr("layers"));
  EXPECT_THAT(error("{layers: -1, hidden: 8, intermediate: 8, patches: 4}"), HasSubstr("'layers' = -1 is outside [1, 1000]"));
  EXPECT_THAT(error("clip-vit-l"), HasSubstr("clip-vit-l-14-336"));
}

}  // namespace
}  // namespace kvlab::testing
