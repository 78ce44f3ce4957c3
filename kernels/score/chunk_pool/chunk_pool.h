#pragma once

#include "kernels/ops.h"

namespace kvlab {

// Tokens [begin, begin + len) of each row in chunks of `chunk_tokens` (the last may be shorter) get their chunk's mean, the mean of its
// larger half (rounded up), their share of its sum, or the largest mean of a unit of `unit_tokens` (len and chunks are whole units). In
// place.
struct ChunkPool {
  enum class Kind : std::uint8_t { kMean, kMeanOfTopHalf, kShare, kBestUnit };
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const std::int32_t* begin = nullptr;  // [num_rows]; null: 0
  const std::int32_t* len = nullptr;    // [num_rows]
  float* scores = nullptr;
  std::int32_t chunk_tokens = 1;
  Kind kind = Kind::kMean;
  bool peer_sums = false;  // kMean: torch's order on a CPU with AVX2, so that equal scores tie as there; CPU only
  std::int32_t unit_tokens = 1;
};
OpCall call(const ChunkPool&);
void run_cpu(const ChunkPool&);
void run_cuda(const ChunkPool&, CudaContext&);

}  // namespace kvlab
