#include <limits>

#include "base/parallel.h"
#include "kernels/select/vertical_slash/vertical_slash.h"
#include "kernels/select/window_sums_cpu.h"

namespace kvlab {

void run_cpu(const VerticalSlash& a) {
  const PromptBlocks& p = a.prompt;
  constexpr float kAlways = std::numeric_limits<float>::infinity();
  for_each_in_parallel(p.q_heads, [&](std::int64_t head) {
    if (a.columns[head] == 0 && a.diagonals[head] == 0) return;
    WindowSums sums = window_sums(p, a.window_queries, head);
    const auto first = [&](std::vector<float>& scores, std::int32_t count) {
      std::fill_n(scores.begin(), std::min<std::size_t>(scores.size(), static_cast<std::size_t>(count)), kAlways);
    };
    first(sums.columns, a.first_columns), first(sums.diagonals, a.near_diagonals);
    for (const std::int32_t c : best_of(sums.columns, a.columns[head])) mark(a.column_marks + head * p.column_words(), c);
    for (const std::int32_t o : best_of(sums.diagonals, a.diagonals[head])) mark_diagonal(p, head, o, a.marks);
  });
}

}  // namespace kvlab
