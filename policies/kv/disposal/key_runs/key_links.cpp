#include "policies/kv/disposal/key_runs/key_links.h"

#include <cmath>

namespace kvlab {

void find_links(const KvRows& kv, std::int32_t row, float min_cosine, std::vector<char>& linked) {
  linked.assign(static_cast<std::size_t>(kv.len[row]) + 1, 0);
  double norm_before = 0;
  for (std::int32_t i = 0; i < kv.len[row]; ++i) {
    const float *k = kv.key(row, i), *before = i > 0 ? kv.key(row, i - 1) : k;
    double square = 0, product = 0;
    for (std::int32_t c = 0; c < kv.head_dim; ++c) {
      square += static_cast<double>(k[c]) * static_cast<double>(k[c]);
      product += static_cast<double>(k[c]) * static_cast<double>(before[c]);
    }
    const double norm = std::sqrt(square);
    if (i > 0 && norm * norm_before > 0)
      linked[static_cast<std::size_t>(i)] = product >= static_cast<double>(min_cosine) * norm * norm_before;
    norm_before = norm;
  }
}

}  // namespace kvlab
