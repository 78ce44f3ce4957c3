#include "kernels/pack_tokens/pack_tokens.h"

#include <algorithm>

namespace kvlab {

namespace {

template <class T>
void copy(T* in_row, T* packed, std::int64_t n, bool unpacks) {
  std::copy_n(unpacks ? packed : in_row, n, unpacks ? in_row : packed);
}

}  // namespace

void run_cpu(const PackTokens& a) {
  const std::int64_t d = a.kv.head_dim, listed = a.listed();
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    for (std::int64_t at = a.first[r]; at < a.first[r + 1]; ++at) {
      const std::int64_t slot = a.kv.slot(r, a.index == nullptr ? static_cast<std::int32_t>(at - a.first[r]) : a.index[at]);
      if (a.k != nullptr) copy(a.kv.k + slot * d, static_cast<float*>(a.k) + at * d, d, a.unpacks);
      if (a.v != nullptr) copy(a.kv.v + slot * d, static_cast<float*>(a.v) + at * d, d, a.unpacks);
      if (a.marks == nullptr) continue;
      copy(reinterpret_cast<std::uint32_t*>(a.kv.position) + slot, a.marks + at, 1, a.unpacks);
      for (std::int64_t w = 0; w < a.kv.num_words; ++w)
        copy(a.kv.words + w * a.kv.pool_tokens + slot, a.marks + (w + 1) * listed + at, 1, a.unpacks);
    }
  }
}

}  // namespace kvlab
