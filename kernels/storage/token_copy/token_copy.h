#pragma once

#include <cstdint>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

class CudaContext;

// Copies of tokens between their pages and consecutive memory, bit for bit. They are not operations of a policy and are not logged; call()
// returns the cost charged to serving, always named "token_copy".
enum class TokenCopyWay : std::uint8_t { kFromPages, kIntoPages };

// The listed vectors, one after another: all channels, or those of a bit mask with the same number of bits in every row. Copying into pages
// sets the other channels to 0. Entries of -1 are skipped on both sides.
struct VectorCopy {
  ListedTokens tokens;
  TokenCopyWay way = TokenCopyWay::kFromPages;
  void* stored = nullptr;                  // [total(), width()] of the pages' type
  const std::uint8_t* channels = nullptr;  // [num_rows, (head_dim + 7) / 8] bit c % 8 of byte c / 8 for channel c; null: all
  std::int32_t keep = 0;                   // bits set in each row's mask; with shapes alone 0 means all channels

  [[nodiscard]] KVLAB_BOTH std::int32_t width() const { return channels == nullptr ? tokens.kv.head_dim : keep; }
};
// The list is read, and the stored channels of each vector are read and written; into pages whole vectors are written, with the zeros.
OpCall call(const VectorCopy&);
void run_cpu(const VectorCopy&);
void run_cuda(const VectorCopy&, CudaContext&);

// Positions and statistics of all tokens: row after row, [1 + num_words, len] each.
struct WordCopy {
  KvRows kv;
  TokenCopyWay way = TokenCopyWay::kFromPages;
  std::uint32_t* stored = nullptr;  // [(1 + num_words) * kv.total()]
};
// All words are read and written.
OpCall call(const WordCopy&);
void run_cpu(const WordCopy&);
void run_cuda(const WordCopy&, CudaContext&);

}  // namespace kvlab
