#pragma once

#include "kernels/kv_rows.h"
#include "kernels/rows/body.h"

// Chunks of rows, for operations on single tokens: a team takes a chunk, so a long row is spread over many.
namespace kvlab {

constexpr std::int32_t kChunkTokens = 256;

struct TokenChunk {
  std::int32_t row, begin, count;
};

// The operation's rows().
inline std::int64_t num_chunks(const KvRows& kv) {
  std::int64_t n = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) n += (kv.len[r] + kChunkTokens - 1) / kChunkTokens;
  return n;
}

KVLAB_BODY inline TokenChunk chunk_at(const KvRows& kv, std::int64_t item) {
  std::int32_t row = 0;
  for (;; ++row) {
    const std::int64_t chunks = (kv.len[row] + kChunkTokens - 1) / kChunkTokens;
    if (item < chunks) break;
    item -= chunks;
  }
  const auto begin = static_cast<std::int32_t>(item * kChunkTokens);
  return {row, begin, kv.len[row] - begin < kChunkTokens ? kv.len[row] - begin : kChunkTokens};
}

}  // namespace kvlab
