#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/lanes_cpu.h"
#include "kernels/score/projected_norms/projected_norms.h"

namespace kvlab {

namespace {

constexpr std::int32_t kBlock = 256;  // tokens projected at once

}  // namespace

void run_cpu(const ProjectedNorms& a) {
  const std::int64_t d = a.kv.head_dim, width = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group * d;
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t at_row) {
    const auto r = static_cast<std::int32_t>(at_row);
    RowMatrix projected;
    float* out = a.out + a.kv.first[r];
    std::fill_n(out, a.kv.len[r], 0.0F);
    for_each_run(a.kv, r, [&](const KvRun& run) {
      for (std::int32_t at = 0; at < run.count; at += kBlock) {
        const std::int32_t count = std::min(kBlock, run.count - at);
        const RowMap values(a.kv.v + (run.slot + at) * d, count, d, Eigen::OuterStride<>(d));
        for (std::int32_t g = 0; g < a.kv.group; ++g) {
          const std::int64_t head = r % a.kv.kv_heads * a.kv.group + g;
          projected.noalias() = values * RowMap(a.w_o + head * d, a.hidden_dim, d, Eigen::OuterStride<>(width)).transpose();
          for (std::int32_t i = 0; i < count; ++i) {
            const float* x = projected.data() + static_cast<std::int64_t>(i) * a.hidden_dim;
            const float norm = a.kind == ProjectedNorms::Kind::kL1
                                   ? lane_sum(x, x, a.hidden_dim, [](const Lanes& m, const Lanes&) -> Lanes { return m.abs(); })
                                   : std::sqrt(lane_dot(x, x, a.hidden_dim));
            out[run.begin + at + i] += norm / static_cast<float>(a.kv.group);
          }
        }
      }
    });
  });
}

}  // namespace kvlab
