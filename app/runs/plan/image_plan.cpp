#include "app/runs/plan/image_plan.h"

#include <fmt/format.h>

#include <utility>

#include "base/config/spec_file.h"

namespace kvlab {

std::optional<ImagePlan> read_images(Params& p) {
  Params images = p.optional_child("images", "images");
  if (!p.has("images")) return std::nullopt;
  ImagePlan plan;
  plan.tokens_each = images.required<std::int32_t>("tokens_each", 1, 1 << 20, "prompt tokens of an image, after those of the text");
  plan.encoder = read_vision_encoder(images, "encoder");
  plan.encoder.tiles = images.optional<std::int64_t>("tiles", 1, 1, 1024, "pictures of the encoder's size that an image is cut into");
  images.reject_unread();
  return plan;
}

EncodePoolPlan read_encode_pool(Params& pool, const std::string& name, const ImagePlan* images, const CostSetup& first) {
  if (images == nullptr)
    pool.fail(
        fmt::format("pool '{}' encodes images, but the experiment has no key 'images': add 'images: {{tokens_each: 576, encoder: "
                    "clip-vit-l-14-336}}' with the figures of the model at the top level, or leave the pool out",
                    name));
  EncodePoolPlan plan;
  plan.name = name;
  plan.batch_images = pool.optional<std::int32_t>("batch_images", 1, 1, 1 << 16, "most images of one pass of the encoder");
  plan.cost.hardware = first.hardware;
  if (pool.has("hardware")) {
    const std::string card = pool.text("hardware", "GPU of its replicas: a name in profiles/hardware, or a file");
    plan.cost.hardware =
        pool.reading("hardware", [&] { return load_hardware_spec(file_or_name(pool, card), profiles_folder() + "/hardware"); });
  }
  plan.work = [encoder = images->encoder, hardware = plan.cost.hardware](std::int64_t count) {
    return encode_work(encoder, hardware, count);
  };
  pool.reject_unread();
  return plan;
}

}  // namespace kvlab
