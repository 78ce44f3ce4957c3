#include <algorithm>
#include <cmath>

#include "kernels/lanes_cpu.h"
#include "kernels/merge/nearest_kept/nearest_kept.h"

namespace kvlab {

namespace {

constexpr std::int32_t kBlock = 64;  // dropped tokens with cosines

// Each of length 1 (0 for a norm that is 0 or not finite).
void unit_keys(const KvRows& kv, std::int32_t row, const std::int32_t* list, std::int32_t count, RowMatrix& keys) {
  keys.resize(count, kv.head_dim);
  for (std::int32_t i = 0; i < count; ++i) {
    const float* k = kv.key(row, list[i]);
    double square = 0;
    for (std::int32_t c = 0; c < kv.head_dim; ++c) square += static_cast<double>(k[c]) * static_cast<double>(k[c]);
    const bool usable = square > 0 && std::isfinite(square);
    const auto scale = static_cast<float>(usable ? 1 / std::sqrt(square) : 0);
    for (std::int32_t c = 0; c < kv.head_dim; ++c) keys(i, c) = usable ? k[c] * scale : 0.0F;
  }
}

}  // namespace

void run_cpu(const NearestKept& a) {
  RowMatrix kept, dropped, cosine;
  for (std::int32_t r = 0; r < a.rows.kv.num_rows; ++r) {
    const std::int64_t first = a.rows.dropped_first[r];
    const std::int32_t count = a.rows.num_dropped(r), num_kept = a.rows.num_kept(r);
    if (count == 0) continue;
    unit_keys(a.rows.kv, r, a.rows.kept + a.rows.kept_first[r], num_kept, kept);
    for (std::int32_t begin = 0; begin < count; begin += kBlock) {
      const std::int32_t block = std::min(kBlock, count - begin);
      unit_keys(a.rows.kv, r, a.rows.dropped + first + begin, block, dropped);
      cosine.noalias() = dropped * kept.transpose();
      for (std::int32_t i = 0; i < block; ++i) {
        std::int32_t best = num_kept > 0 ? 0 : -1;
        for (std::int32_t j = 1; j < num_kept; ++j)
          if (cosine(i, j) > cosine(i, best)) best = j;
        a.target[first + begin + i] = best;
        a.similarity[first + begin + i] = best < 0 ? 0.0F : std::clamp(cosine(i, best), -1.0F, 1.0F);
      }
    }
  }
}

}  // namespace kvlab
