#pragma once

#include <memory>

#include "engine/cache/policy_cache.h"
#include "engine/device/device_model.h"
#include "engine/device/device_transformer.h"
#include "tests/cuda/cuda_fixture.h"
#include "tests/engine/small_model.h"
#include "tests/error_of.h"
#if KVLAB_EMULATED
#include "kernels/device/emulated/device_memory.h"
#endif

namespace kvlab {

inline ModelConfig tiny_config() {
  ModelConfig c;
  c.name = "tiny";
  c.layers = 2, c.hidden_dim = 64, c.intermediate_dim = 96;
  c.q_heads = 4, c.kv_heads = 2, c.head_dim = 64;
  c.vocab_size = 80, c.max_tokens = 512;
  c.rope_base = 10000, c.norm_epsilon = 1e-5F;
  return c;
}

// Normal numbers that bf16 holds exactly.
inline std::vector<float> bf16_floats(std::int64_t n, std::uint64_t seed, float deviation) {
  return floats(random_elements<bf16>(n, seed, deviation));
}

// With everything that other families than Llama have.
inline ModelConfig rich_config() {
  ModelConfig c = tiny_config();
  c.qkv_bias = c.o_bias = c.mlp_bias = c.qk_norm = true;
  c.windows = {0, 12};
  c.rope_scaling.kind = RopeScaling::Kind::kLlama3;
  c.rope_scaling.factor = 4, c.rope_scaling.original_tokens = 16, c.rope_scaling.high_freq_factor = 4;
  return c;
}

// Matrices that keep the size of the vectors they multiply, norms near 1, small biases.
inline ModelWeights tiny_weights(const ModelConfig& c) {
  std::uint64_t seed = 1;
  return make_weights(c, [&](const std::string& name, const std::vector<std::int64_t>& shape, std::span<float> to) {
    const bool is_norm = name.ends_with("norm.weight"), is_table = name.starts_with("model.embed_tokens");
    const float deviation = is_norm ? 0.25F : shape.size() == 1 ? 0.3F : is_table ? 1.0F : 1.5F / std::sqrt(static_cast<float>(shape[1]));
    const std::vector<float> numbers = bf16_floats(static_cast<std::int64_t>(to.size()), seed++, deviation);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = is_norm ? to_float(from_float<bf16>(1 + numbers[i])) : numbers[i];
  });
}

inline std::unique_ptr<EngineModel> tiny_model(ElementType type) {
  return make_device_model(tiny_config(), tiny_weights(tiny_config()), {}, type);
}

inline std::vector<std::int32_t> tiny_ids(std::int32_t n, std::int32_t seed) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < n; ++i) ids.push_back((i * i * 7 + i * seed + seed) % tiny_config().vocab_size);
  return ids;
}

#if KVLAB_EMULATED
constexpr std::int64_t kAllMemory = std::int64_t{1} << 34;

// error_of(act) while no more than `room` bytes of GPU memory are free.
template <class Act>
std::string error_with_room(std::int64_t room, Act&& act) {
  emulated::limit_memory(emulated::used_memory() + room);
  const std::string error = error_of(act);
  emulated::limit_memory(kAllMemory);
  return error;
}
#endif

}  // namespace kvlab
