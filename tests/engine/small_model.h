#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backend/engine_model.h"
#include "engine/cache/sequence.h"
#include "engine/model/transformer.h"

namespace kvlab {

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
