#pragma once

#include <memory>

#include "engine/backend/engine_model.h"

namespace kvlab::test {

// A shape that runs fast. With this many ids few occur twice in a prompt; those that do have keys that tie up to rounding.
inline ModelConfig small_config(std::int32_t layers) {
  ModelConfig c;
  c.name = "small", c.type = "llama";
  c.layers = layers, c.hidden_dim = 64, c.intermediate_dim = 64;
  c.q_heads = 4, c.kv_heads = 2, c.head_dim = 32;
  c.vocab_size = 8192, c.max_tokens = 1024;
  c.rope_base = 10000, c.norm_epsilon = 1e-5F;
  return c;
}

// A model with random weights.
inline const EngineModel& small_model() {
  static const std::unique_ptr<EngineModel> model = make_random_model("cpu", small_config(4));
  return *model;
}

}  // namespace kvlab::test
