#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/cache/sequence.h"

namespace kvlab {

inline EngineSequence sequence_of(std::int32_t index, std::vector<std::int32_t> ids, std::int32_t prompt) {
  EngineSequence s;
  s.index = index;
  s.ids = std::move(ids);
  s.prompt_tokens = prompt;
  return s;
}

}  // namespace kvlab
