#pragma once

#include "kernels/attention/sparse_prefill/sparse_prefill.h"

namespace kvlab {

// Marks the key blocks that each query block of a prompt attends to, per query head. Ties go to the lower index.
//   kLocal: key block j of query block i if j < ceil(first / block) or i - j <= ceil(second / block), in tokens. A-shape of MInference,
//     Jiang et al. 2024, arXiv:2407.02490; StreamingLLM, Xiao et al. 2024.
//   kPooled: the own block and `first` - 1 earlier ones by largest mean key . mean query. MInference, Algorithm 3.
//   kVerticalSlash: P = softmax(q k^T / sqrt(d)) of the chunk's last window_queries queries: the `first` largest columns (in column_marks)
//     and blocks on the `second` best diagonals (query - key); first_columns and near_diagonals go first. MInference, Algorithm 2; the
//     authors cut ranges that start at the diagonal.
//   kFlex: FlexPrefill, Lai et al. 2025, arXiv:2502.20766, Algorithms 1 to 4, as in the authors' code. P of the last `block` queries.
//     Query-aware heads: sqrt(JSD(softmax(mean q . mean k_j / sqrt(d)), sums of P in block j)) < tau. n columns (diagonals) hold `share` of
//     the mass: the n / 128 + 1 best blocks, min_blocks to max_blocks (query-aware: min_blocks), block 0 first. Query-aware heads add pairs
//     of blocks of all rows by falling softmax of their means' products, up to a sum of share * rows.
//   kAntidiagonal: z[I, J] = sum over u < stride of q[I stride + stride - 1 - u] . k[J stride + u] / (stride sqrt(d)), softmax over J,
//     summed in blocks: the first and the own block, then others by falling sum up to `share`. Missing tokens are zeros. XAttention, Xu et
//     al. 2025, arXiv:2503.16428, Algorithm 1.
struct MarkBlocks {
  enum class Kind : std::uint8_t { kLocal, kPooled, kVerticalSlash, kFlex, kAntidiagonal };
  PromptBlocks prompt;  // kLocal does not read q and k
  Kind kind = Kind::kLocal;
  std::int32_t* marks = nullptr;         // [num_lists, mark_words] added to
  std::int32_t* column_marks = nullptr;  // [q_heads, column_words]
  // [q_heads] in CPU memory; both 0: head unchanged. Null: all heads (first), 0 (second)
  const std::int32_t *first = nullptr, *second = nullptr;
  std::int32_t window_queries = 64, first_columns = 30, near_diagonals = 100;  // kVerticalSlash
  double share = 0.9, tau = 0.1;                                               // 0 to 1
  std::int32_t min_blocks = 8, max_blocks = 1 << 24;                           // kFlex
  std::int32_t stride = 16;                                                    // kAntidiagonal: divides the block

  [[nodiscard]] KVLAB_BOTH std::int32_t count(const std::int32_t* of, std::int64_t head) const { return of == nullptr ? 0 : of[head]; }
  [[nodiscard]] KVLAB_BOTH bool marks_head(std::int64_t head) const {
    return first == nullptr || first[head] > 0 || count(second, head) > 0;
  }
};
// kFlex: as if all heads were query-aware.
OpCall call(const MarkBlocks&);
void run_cpu(const MarkBlocks&);
void run_cuda(const MarkBlocks&, CudaContext&);

}  // namespace kvlab
