#pragma once

#include <cstdint>
#include <span>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;
struct RowList;

// Keeps the `keep` channels of largest |x| of each listed vector (ties to the lower channel) in fp16. Packed token (Mustafar, Joo et al.
// 2025, arXiv:2505.22913, section 3.2): per tile of 64 channels a bitmap of 64 bits and an offset of 4 bytes; then each tile's numbers,
// filled with zeros to a multiple of 8.
struct Sparsify {
  ListedTokens tokens;
  std::int32_t keep = 0;           // 0 to head_dim
  std::uint8_t* packed = nullptr;  // [total() * most_sparse_bytes()] out; most_sparse_bytes() per token
  bool unpacks = false;            // writes the listed vectors: other channels become 0
};
inline constexpr std::int32_t kSparseTile = 64, kSparsePad = 8;

// For any split of the kept channels over tiles.
std::int64_t most_sparse_bytes(std::int32_t head_dim, std::int32_t keep);
// For an even split, counted with shapes only.
std::int64_t even_sparse_bytes(std::int32_t head_dim, std::int32_t keep);
// From the token's bitmaps.
std::int64_t sparse_bytes(std::int32_t head_dim, const std::uint8_t* token);

// As even_sparse_bytes().
OpCall call(const Sparsify&);
void run_cpu(const Sparsify&);
void run_cuda(const Sparsify&, CudaContext&);

// Each token has the room of most_sparse_bytes().
void stored_arrays(Sparsify&, StoredArrays&);
bool goes_on(const Sparsify&, const Sparsify& later, std::span<const RowList>);

}  // namespace kvlab
