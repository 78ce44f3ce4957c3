#pragma once

#include <cstdint>
#include <utility>
#include <vector>

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
