#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;

// X ~ left * right of rank `rank`, factors in fp16. X: a row's listed vectors [entries, head_dim], or with `joint_heads` those of all KV
// heads [entries, kv_heads * head_dim] (InternalError for lists of different length). Subspace iteration: `rounds` of Q = orth(X R), R =
// orth(X^T Q) from a random start (Halko et al. 2011, algorithm 4.4). Smaller matrices have full rank, then zeros. `pre_rope`: keys before
// rotation, by position.
struct LowRankFactor {
  ListedTokens tokens;
  bool joint_heads = false;
  std::int32_t rank = 1, rounds = 2;
  std::uint64_t seed = 0;
  const float* const* pre_rope = nullptr;  // [num_sequences] -> [by position, kv_heads, head_dim]
  bool is_pre_rope = false;                // on shapes the pointer is null
  std::uint16_t* left = nullptr;           // out: by matrix, [entries, rank]
  std::uint16_t* right = nullptr;          // out: by matrix, [rank, width]
  // Writes left * right into the listed vectors except `exact`. With `pre_rope`, channel pairs (c, c + head_dim / 2) turn by the angle
  // between the recorded key before and after rotation.
  bool unpacks = false;
  const std::int64_t* exact_first = nullptr;  // [num_rows + 1] in CPU memory; null: none
  const std::int32_t* exact = nullptr;        // [exact_first[num_rows]] ascending; also in the row's list
  [[nodiscard]] std::int64_t num_exact() const { return exact_first == nullptr ? 0 : exact_first[tokens.kv.num_rows]; }
};
// First row, entries, columns, first numbers in left and right.
struct LowRankShape {
  std::int32_t row = 0, entries = 0;
  std::int64_t width = 0, left = 0, right = 0;
};
std::vector<LowRankShape> low_rank_shapes(const LowRankFactor&);
// InternalError for joint heads with lists of different length.
void check_heads(const LowRankFactor&);
std::int64_t left_numbers(const LowRankFactor&);
std::int64_t right_numbers(const LowRankFactor&);

// 2 * rounds + 2 reads of X; 3 operations per rotated element.
OpCall call(const LowRankFactor&);
void run_cpu(const LowRankFactor&);
void run_cuda(const LowRankFactor&, CudaContext&);  // `pre_rope`: CPU array of device pointers

// A matrix per row, keys after RoPE.
void stored_arrays(LowRankFactor&, StoredArrays&);

}  // namespace kvlab
