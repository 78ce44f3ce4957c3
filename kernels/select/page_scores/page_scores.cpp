#include "kernels/select/page_scores/page_scores.h"

namespace kvlab {

OpCall call(const PageScores& a) {
  OpCall c{.op = "page_scores", .rows = a.num_rows};
  const bool dot = a.kind == PageScores::Kind::kDot;
  const std::int64_t line =
      static_cast<std::int64_t>(dot ? 1 : 2) * a.head_dim * a.kv_bytes + (a.weighs_sizes ? 4 : 0) + (a.lists_units ? 4 : 0);
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t n = a.first[r + 1] - a.first[r];
    if (n == 0) continue;
    const std::int64_t outputs = a.heads == PageScores::Heads::kEach ? n * a.group : n;
    c.tokens += n;
    c.outputs += outputs;
    c.bytes += n * line + 2LL * a.group * a.head_dim + 4 * outputs;
    c.flops += n * a.group * ((dot ? 2LL : 4LL) * a.head_dim + (a.softmax ? 4 : 0));
  }
  return c;
}
KVLAB_WITHOUT_CUDA(PageScores)

}  // namespace kvlab
