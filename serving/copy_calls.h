#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"

namespace kvlab {

// Copy calls between GPU and CPU memory for `blocks` in token order: one per run of adjacent rising ids, of at most `most_blocks`. CPU
// memory holds blocks in order, so a run is one range on both sides.
[[nodiscard]] inline std::int64_t copy_calls(std::span<const BlockId> blocks, std::int32_t most_blocks) {
  std::int64_t calls = 0;
  std::int32_t run = most_blocks;  // blocks of the call so far
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const bool joins = i > 0 && index(blocks[i]) == index(blocks[i - 1]) + 1 && run < most_blocks;
    run = joins ? run + 1 : 1;
    calls += joins ? 0 : 1;
  }
  return calls;
}

}  // namespace kvlab
