#pragma once

#include <memory>

#include "engine/backend/engine_model.h"

namespace kvlab::test {

// Random weights in a shape that runs in no time. Of so many ids few come twice in a prompt: where they do, keys tie up to rounding.
inline const EngineModel& small_model() {
  static const std::unique_ptr<EngineModel> model = [] {
    ModelConfig c;
    c.name = "small", c.type = "llama";
    c.layers = 4, c.hidden_dim = 64, c.intermediate_dim = 64;
    c.q_heads = 4, c.kv_heads = 2, c.head_dim = 32;
    c.vocab_size = 8192, c.max_tokens = 1024;
    c.rope_base = 10000, c.norm_epsilon = 1e-5F;
    return make_random_model("cpu", c);
  }();
  return *model;
}

}  // namespace kvlab::test
