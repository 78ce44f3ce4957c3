#include "kernels/allocate/count_scores/count_scores.h"

#include <algorithm>

namespace kvlab {

OpCall call(const CountScores& a) {
  const std::int64_t n = a.first[a.num_rows];
  return {.op = "count_scores",
          .rows = a.num_rows,
          .tokens = n,
          .outputs = a.num_rows,
          .bytes = 4 * n + 4LL * a.num_rows,
          .flops = (a.kind == CountScores::Kind::kLeadingMass ? 2 : 1) * n};
}
KVLAB_WITHOUT_CUDA(CountScores)

namespace {

std::int64_t leading_mass(const float* begin, const float* end, double share) {
  double total = 0, sum = 0;
  for (const float* x = begin; x < end; ++x) total += *x;
  const float* x = begin;
  while (x < end) {
    sum += *x++;
    if (sum >= share * total) break;
  }
  return x - begin;
}

}  // namespace

void run_cpu(const CountScores& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const float *begin = a.scores + a.first[r], *end = a.scores + a.first[r + 1];
    const auto counts = [&](float s) { return a.kind == CountScores::Kind::kAbove ? s > a.limit : s >= a.limit; };
    a.count[r] = static_cast<std::int32_t>(a.kind == CountScores::Kind::kLeadingMass ? leading_mass(begin, end, a.limit)
                                                                                     : std::count_if(begin, end, counts));
  }
}

}  // namespace kvlab
