#include <algorithm>

#include "kernels/select/page_means/page_means.h"

namespace kvlab {

void run_cpu(const PageMeans& a) {
  const std::int64_t d = a.kv.head_dim;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    for (std::int32_t j = a.first_window(r); j < a.windows(r); ++j) {
      const std::int32_t begin = j * a.stride_tokens, end = std::min(begin + a.span_tokens, a.kv.len[r]);
      const std::int32_t first = std::max(begin, a.from[r]);
      float* mean = a.means[r] + j * d;
      for (std::int64_t c = 0; c < d; ++c) mean[c] = first == begin ? 0.0F : mean[c] * static_cast<float>(first - begin);
      for (std::int32_t i = first; i < end; ++i) {
        const float* key = a.kv.key(r, i);
        for (std::int64_t c = 0; c < d; ++c) mean[c] += key[c];
      }
      for (std::int64_t c = 0; c < d; ++c) mean[c] /= static_cast<float>(end - begin);
    }
  }
}

}  // namespace kvlab
