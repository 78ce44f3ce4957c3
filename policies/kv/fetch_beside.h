#pragma once

#include <cstdint>

namespace kvlab {

// The computation beside which a decode step's transfers from lower tiers run; attention of a layer waits for its own transfer.
// kNothing: the layer's query chooses what to bring, and nothing else is left to do until it is there.
// kLayerBefore: known beforehand, so a layer's transfer runs while the layer before computes.
// kKeyRebuild: the layer's query chooses, and the kept keys are decoded from their low-rank form meanwhile ("low_rank_rebuild").
enum class FetchBeside : std::uint8_t { kNothing, kLayerBefore, kKeyRebuild };

}  // namespace kvlab
