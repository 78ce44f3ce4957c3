#include <cmath>
#include <vector>

#include "kernels/select/page_scores/page_scores.h"
#include "kernels/select/page_scores/unit_scores.h"

namespace kvlab {

void run_cuda(const PageScores& a, CudaContext& cuda) {
  if (a.num_rows == 0 || a.first[a.num_rows] == 0) return;
  const CudaContext::Frame frame(cuda);
  UnitScores scores{a.group,
                    a.head_dim,
                    static_cast<UnitScores::Kind>(a.kind),
                    static_cast<UnitScores::Heads>(a.heads),
                    a.max_share,
                    1.0F / std::sqrt(static_cast<float>(a.head_dim))};
  float* const z = a.softmax ? cuda.scratch<float>(a.group * a.first[a.num_rows]) : nullptr;
  if (a.softmax) scores.heads = UnitScores::Heads::kEach;
  std::vector<UnitRow> rows;
  std::vector<SoftmaxRow> softmax;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const auto n = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]);
    const Queries& q = a.queries[r / a.kv_heads];
    const std::int64_t at = (static_cast<std::int64_t>(q.count - 1) * a.kv_heads + r % a.kv_heads) * a.group * a.head_dim;
    const std::int32_t* const unit = a.lists_units ? a.unit + a.first[r] : nullptr;
    float* const out = a.scores + (a.heads == PageScores::Heads::kEach ? a.group : 1) * a.first[r];
    float* const logits = a.softmax ? z + a.group * a.first[r] : out;
    rows.push_back({n > 0 ? q.data + at : nullptr, a.summaries[r], unit, logits, n});
    if (a.softmax) softmax.push_back({logits, out, unit, a.weighs_sizes ? a.sizes[r] : nullptr, n});
  }
  score_units("page_scores", scores, rows, cuda);
  if (a.softmax) soften_rows("page_scores", softmax, a.group, static_cast<UnitScores::Heads>(a.heads), cuda);
}

}  // namespace kvlab
