#pragma once

#include <cstdint>

namespace kvlab {

// Overlap of a decode step's transfers; a layer's attention waits for its own.
// kLayerBefore: tokens are known earlier, else the layer's query chooses. kKeyRebuild: overlaps low-rank decoding ("low_rank_rebuild").
enum class FetchBeside : std::uint8_t { kNothing, kLayerBefore, kKeyRebuild };

struct TierBytes {
  std::int64_t gpu = 0, host = 0, disk = 0;
  TierBytes& operator+=(const TierBytes& o) {
    gpu += o.gpu, host += o.host, disk += o.disk;
    return *this;
  }
  [[nodiscard]] TierBytes with_gpu(std::int64_t more) const { return {gpu + more, host, disk}; }
  friend bool operator==(const TierBytes&, const TierBytes&) = default;
};

struct Traffic {
  std::int64_t fetched_bytes = 0;               // from a lower tier
  std::int64_t asked_units = 0, hit_units = 0;  // tokens, pages or clusters wanted; hits: on the GPU
  std::int64_t stored_bytes = 0;                // to a lower tier
  std::int64_t disk_bytes = 0;                  // in stored form
  std::int64_t in_place_bytes = 0;              // of fetched_bytes: used in place, no link crossed
  Traffic& operator+=(const Traffic& o) {
    fetched_bytes += o.fetched_bytes, asked_units += o.asked_units, hit_units += o.hit_units;
    stored_bytes += o.stored_bytes, disk_bytes += o.disk_bytes, in_place_bytes += o.in_place_bytes;
    return *this;
  }
};

}  // namespace kvlab
