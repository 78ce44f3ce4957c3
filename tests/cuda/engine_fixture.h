#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/cache/policy_cache.h"
#include "engine/device/device_model.h"
#include "engine/device/device_transformer.h"
#include "tests/cuda/cuda_fixture.h"

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

inline ModelWeights tiny_weights(const ModelConfig& c) {
  std::uint64_t seed = 1;
  const auto matrix = [&](std::int64_t out, std::int64_t in) {
    return bf16_floats(out * in, seed++, 1.5F / std::sqrt(static_cast<float>(in)));
  };
  const auto norm = [&](std::int64_t n) {
    std::vector<float> w = bf16_floats(n, seed++, 0.25F);
    for (float& x : w) x += 1;
    return floats([&] {
      std::vector<bf16> rounded;
      for (const float x : w) rounded.push_back(from_float<bf16>(x));
      return rounded;
    }());
  };
  const std::int64_t q_width = std::int64_t{c.q_heads} * c.head_dim, kv_width = std::int64_t{c.kv_heads} * c.head_dim;
  ModelWeights w;
  w.embedding = bf16_floats(std::int64_t{c.vocab_size} * c.hidden_dim, seed++, 1);
  w.final_norm = norm(c.hidden_dim);
  w.untied_head = matrix(c.vocab_size, c.hidden_dim);
  for (std::int32_t l = 0; l < c.layers; ++l) {
    LayerWeights layer;
    layer.attention_norm = norm(c.hidden_dim), layer.mlp_norm = norm(c.hidden_dim);
    layer.q = matrix(q_width, c.hidden_dim), layer.k = matrix(kv_width, c.hidden_dim), layer.v = matrix(kv_width, c.hidden_dim);
    layer.o = matrix(c.hidden_dim, q_width);
    layer.gate = matrix(c.intermediate_dim, c.hidden_dim), layer.up = matrix(c.intermediate_dim, c.hidden_dim);
    layer.down = matrix(c.hidden_dim, c.intermediate_dim);
    const auto bias = [&](bool has, std::int64_t n) { return has ? bf16_floats(n, seed++, 0.3F) : std::vector<float>{}; };
    layer.q_bias = bias(c.qkv_bias, q_width), layer.k_bias = bias(c.qkv_bias, kv_width), layer.v_bias = bias(c.qkv_bias, kv_width);
    layer.o_bias = bias(c.o_bias, c.hidden_dim), layer.down_bias = bias(c.mlp_bias, c.hidden_dim);
    layer.gate_bias = bias(c.mlp_bias, c.intermediate_dim), layer.up_bias = bias(c.mlp_bias, c.intermediate_dim);
    if (c.qk_norm) layer.q_norm = norm(c.head_dim), layer.k_norm = norm(c.head_dim);
    w.layers.push_back(std::move(layer));
  }
  return w;
}

inline std::vector<std::int32_t> tiny_ids(std::int32_t n, std::int32_t seed) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < n; ++i) ids.push_back((i * i * 7 + i * seed + seed) % tiny_config().vocab_size);
  return ids;
}

inline EngineSequence sequence_of(std::int32_t index, std::vector<std::int32_t> ids, std::int32_t prompt) {
  EngineSequence s;
  s.index = index;
  s.ids = std::move(ids);
  s.prompt_tokens = prompt;
  return s;
}

// Pieces of sequences whose ids are known, as the batch of a step.
struct PieceBatch {
  explicit PieceBatch(std::vector<StepPiece> all) : pieces(std::move(all)) {
    for (const StepPiece& p : pieces)
      for (std::int32_t i = 0; i < p.new_tokens; ++i) {
        positions.push_back(p.sequence->seen_tokens + i);
        ids.push_back(p.sequence->ids[static_cast<std::size_t>(positions.back())]);
        rows.push_back(static_cast<std::int32_t>(rows.size()));
      }
  }
  [[nodiscard]] TokenBatch tokens() const { return {ids, positions}; }
  std::vector<StepPiece> pieces;
  std::vector<std::int32_t> ids, positions, rows;
};

}  // namespace kvlab
