#include "kernels/token_copy/token_copy.h"

#include <algorithm>

namespace kvlab {

OpCall call(const VectorCopy& a) {
  const KvRows& kv = a.tokens.kv;
  const std::int64_t n = a.tokens.total(), d = kv.head_dim, stored = a.keep > 0 ? a.keep : d;
  const std::int64_t in_pages = a.way == TokenCopyWay::kIntoPages ? d : stored;
  return {"token_copy", kv.num_rows, n, n, a.tokens.list_bytes() + n * (stored + in_pages) * kv.kv_bytes, 0};
}

OpCall call(const WordCopy& a) {
  const std::int64_t n = a.kv.total();
  return {"token_copy", a.kv.num_rows, n, n, 2 * 4 * (std::int64_t{1} + a.kv.num_words) * n, 0};
}

namespace {

void copy_vector(const VectorCopy& a, const std::uint8_t* mask, float* x, float* stored) {
  const std::int32_t d = a.tokens.kv.head_dim;
  if (mask == nullptr) {
    const bool from_pages = a.way == TokenCopyWay::kFromPages;
    std::copy_n(from_pages ? x : stored, d, from_pages ? stored : x);
    return;
  }
  for (std::int32_t c = 0; c < d; ++c) {
    const bool stays = (mask[c / 8] >> (c % 8) & 1U) != 0;
    if (a.way == TokenCopyWay::kIntoPages)
      x[c] = stays ? *stored++ : 0.0F;
    else if (stays)
      *stored++ = x[c];
  }
}

}  // namespace

void run_cpu(const VectorCopy& a) {
  const std::int32_t mask_bytes = (a.tokens.kv.head_dim + 7) / 8;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::uint8_t* const mask = a.channels == nullptr ? nullptr : a.channels + std::int64_t{r} * mask_bytes;
    const std::int32_t tokens = a.tokens.count(r);
    for (std::int32_t i = 0; i < tokens; ++i)
      copy_vector(a, mask, a.tokens.at(r, i), static_cast<float*>(a.stored) + (a.tokens.first[r] + i) * a.width());
  }
}

void run_cpu(const WordCopy& a) {
  const KvRows& kv = a.kv;
  const bool from_pages = a.way == TokenCopyWay::kFromPages;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const std::int32_t n = kv.len[r];
    std::uint32_t* const row = a.stored + std::int64_t{1 + kv.num_words} * kv.first[r];
    for (std::int32_t i = 0, count = 0; i < n; i += count) {
      count = std::min(n - i, kv.page_tokens - i % kv.page_tokens);
      const std::int64_t slot = kv.slot(r, i);
      if (from_pages)
        std::copy_n(kv.position + slot, count, row + i);
      else
        std::copy_n(row + i, count, kv.position + slot);
      for (std::int64_t w = 0; w < kv.num_words; ++w) {
        std::uint32_t *const word = kv.words + w * kv.pool_tokens + slot, *const stored = row + (1 + w) * n + i;
        std::copy_n(from_pages ? word : stored, count, from_pages ? stored : word);
      }
    }
  }
}

}  // namespace kvlab
