#pragma once

#include <cstdint>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;

// Best approximations X ~ left * right of rank `rank`, factors stored in fp16. X is a row's listed vectors [entries, head_dim], or
// with `joint_heads` those of all KV heads of a sequence side by side [entries, kv_heads * head_dim] (heads with lists of different
// length are an InternalError then). By subspace iteration: right spans the row space after `rounds` of Q = orth(X R), R = orth(X^T Q),
// from a random start keyed by seed (Halko et al. 2011, algorithm 4.4). A smaller matrix gives its full rank, the rest of the factors is 0.
// With `pre_rope`, X holds the keys before rotation, taken by the tokens' positions.
struct LowRankFactor {
  ListedTokens tokens;
  bool joint_heads = false;
  std::int32_t rank = 1, rounds = 2;
  std::uint64_t seed = 0;
  const float* const* pre_rope = nullptr;  // [num_sequences] -> [by position, kv_heads, head_dim]
  bool is_pre_rope = false;                // a flag, because with shapes alone the pointer is null
  std::uint16_t* left = nullptr;           // out: matrix after matrix, [entries, rank]
  std::uint16_t* right = nullptr;          // out: matrix after matrix, [rank, width]
};
// Throws where the heads' lists must be of one length and are not.
void check_heads(const LowRankFactor&);
// Numbers in all left or right factors.
std::int64_t left_numbers(const LowRankFactor&);
std::int64_t right_numbers(const LowRankFactor&);

// X is read 2 * rounds + 2 times in the model's precision, the factors are written; 2 * entries * width * rank operations per
// product and 2 * (entries + width) * rank^2 per orthogonalisation.
OpCall call(const LowRankFactor&);
void run_cpu(const LowRankFactor&);
void run_cuda(const LowRankFactor&, CudaContext&);  // `pre_rope` is a CPU array of device pointers.

// Writes left * right into the listed vectors, except those of tokens in the row's list `exact`, which do not change. With `pre_rope`, each
// pair of channels (c, c + head_dim / 2) is rotated by the angle between the recorded key before and after rotation, which covers any kind
// of RoPE scaling.
struct LowRankRebuild {
  LowRankFactor factor;
  const std::int64_t* exact_first = nullptr;  // [num_rows + 1], null: none. Host memory
  const std::int32_t* exact = nullptr;        // [exact_first[num_rows]] tokens of the rows, ascending; each is in the row's list too
  [[nodiscard]] std::int64_t num_exact() const { return exact_first == nullptr ? 0 : exact_first[factor.tokens.kv.num_rows]; }
};
// The factors are read, with the lists, the vectors written; rotation costs 3 operations per element.
OpCall call(const LowRankRebuild&);
void run_cpu(const LowRankRebuild&);
void run_cuda(const LowRankRebuild&, CudaContext&);

// As stored K and V (kernels/storage/stored/stored_code.h), where each row is a matrix of its own and keys are those after RoPE.
inline ListedTokens& tokens_of(LowRankRebuild& a) { return a.factor.tokens; }
void stored_arrays(LowRankRebuild&, StoredArrays&);

}  // namespace kvlab
