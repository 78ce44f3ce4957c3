#include <Eigen/Core>
#include <bit>

#include "kernels/gelu.h"
#include "policies/kv/scorer/hidden_scores/hidden_scores.h"

namespace kvlab {

namespace {

using HiddenMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using HiddenMap = Eigen::Map<const HiddenMatrix>;
using HiddenBias = Eigen::Map<const Eigen::RowVectorXf>;

// [tokens, kv_heads]
HiddenMatrix scores_of(const HiddenScores& a, const float* hidden, std::int32_t tokens) {
  const HiddenMap h(hidden, tokens, a.hidden_dim);
  const std::int32_t first_dim = a.mid_dim == 0 ? a.kv.kv_heads : a.mid_dim;
  HiddenMatrix out = h.lazyProduct(HiddenMap(a.w1, first_dim, a.hidden_dim).transpose());
  out.rowwise() += HiddenBias(a.b1, first_dim);
  if (a.mid_dim == 0) return out;
  const HiddenMatrix active = out.unaryExpr(&gelu);
  HiddenMatrix second = active.lazyProduct(HiddenMap(a.w2, a.kv.kv_heads, a.mid_dim).transpose());
  second.rowwise() += HiddenBias(a.b2, a.kv.kv_heads);
  return second;
}

}  // namespace

// Products are computed token by token in one order, so that a score does not depend on the batch or the chunk of its token.
void run_cpu(const HiddenScores& a) {
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    for (std::int32_t t = 0; t < a.new_tokens[s]; ++t) {
      const HiddenMatrix of_heads = scores_of(a, a.hidden[s] + std::int64_t{t} * a.hidden_dim, 1);
      for (std::int32_t h = 0; h < a.kv.kv_heads; ++h) {
        const std::int32_t row = s * a.kv.kv_heads + h, token = a.kv.len[row] - a.new_tokens[s] + t;
        if (token >= 0) a.kv.word(a.channel, row, token) = std::bit_cast<std::uint32_t>(of_heads(0, h));
      }
    }
  }
}

}  // namespace kvlab
