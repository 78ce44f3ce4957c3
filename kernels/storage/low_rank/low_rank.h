#pragma once

#include <cstdint>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;

// X ~ left * right of rank `rank`, factors in fp16. X is a row's listed vectors [entries, head_dim], or with `joint_heads` those of all KV
// heads of a sequence [entries, kv_heads * head_dim] (InternalError if their lists differ in length). Subspace iteration: `rounds` of Q =
// orth(X R), R = orth(X^T Q) from a random start (Halko et al. 2011, algorithm 4.4). A smaller matrix has its full rank, then zeros. With
// `pre_rope`, X holds the keys before rotation, by the tokens' positions.
struct LowRankFactor {
  ListedTokens tokens;
  bool joint_heads = false;
  std::int32_t rank = 1, rounds = 2;
  std::uint64_t seed = 0;
  const float* const* pre_rope = nullptr;  // [num_sequences] -> [by position, kv_heads, head_dim]
  bool is_pre_rope = false;                // a flag, because with shapes alone the pointer is null
  std::uint16_t* left = nullptr;           // out: matrix after matrix, [entries, rank]
  std::uint16_t* right = nullptr;          // out: matrix after matrix, [rank, width]
  // Writes left * right into the listed vectors, but those in `exact`. With `pre_rope`, pairs of channels (c, c + head_dim / 2) turn by the
  // angle between the recorded key before and after rotation.
  bool unpacks = false;
  const std::int64_t* exact_first = nullptr;  // [num_rows + 1] in CPU memory; null: none
  const std::int32_t* exact = nullptr;        // [exact_first[num_rows]] tokens of the rows, ascending; each is in the row's list too
  [[nodiscard]] std::int64_t num_exact() const { return exact_first == nullptr ? 0 : exact_first[tokens.kv.num_rows]; }
};
// Throws where the heads' lists must be of one length and are not.
void check_heads(const LowRankFactor&);
// Numbers in all left or right factors.
std::int64_t left_numbers(const LowRankFactor&);
std::int64_t right_numbers(const LowRankFactor&);

// X is read 2 * rounds + 2 times in the model's precision, the factors are written; 2 * entries * width * rank operations per
// product and 2 * (entries + width) * rank^2 per orthogonalisation. Unpacking reads the factors and the lists and writes
// the vectors; rotation costs 3 operations per element.
OpCall call(const LowRankFactor&);
void run_cpu(const LowRankFactor&);
void run_cuda(const LowRankFactor&, CudaContext&);  // `pre_rope` is a CPU array of device pointers.

// As stored K and V (kernels/storage/stored/stored_code.h), where each row is a matrix of its own and keys are those after RoPE.
void stored_arrays(LowRankFactor&, StoredArrays&);

}  // namespace kvlab
