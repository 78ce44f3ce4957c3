#pragma once

#include <cstdint>

namespace kvlab {

// Overlap of a decode step's transfers; a layer's attention waits for its own.
// - kNothing: the layer's query chooses tokens.
// - kLayerBefore: known earlier; overlaps the layer before.
// - kKeyRebuild: the query chooses; overlaps low-rank decoding ("low_rank_rebuild").
enum class FetchBeside : std::uint8_t { kNothing, kLayerBefore, kKeyRebuild };

}  // namespace kvlab
