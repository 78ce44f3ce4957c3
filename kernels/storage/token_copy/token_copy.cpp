#include "kernels/storage/token_copy/token_copy.h"

#include <algorithm>

namespace kvlab {

OpCall call(const VectorCopy& a) {
  const KvRows& kv = a.tokens.kv;
  const std::int64_t n = a.tokens.total(), d = kv.head_dim, stored = a.keep > 0 ? a.keep : d;
  const std::int64_t in_pages = a.way == TokenCopyWay::kIntoPages ? d : stored;
  return {.op = "token_copy",
          .rows = kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = a.tokens.list_bytes() + n * (stored + in_pages) * kv.kv_bytes};
}
KVLAB_WITHOUT_CUDA(VectorCopy)

OpCall call(const WordCopy& a) {
  const std::int64_t n = a.kv.total();
  return {.op = "token_copy", .rows = a.kv.num_rows, .tokens = n, .outputs = n, .bytes = 2 * 4 * (std::int64_t{1} + a.kv.num_words) * n};
}
KVLAB_WITHOUT_CUDA(WordCopy)

namespace {

// Number of entries from `i` on that are adjacent in a page.
std::int32_t run_length(const ListedTokens& tokens, std::int32_t row, std::int32_t i, std::int32_t count) {
  const std::int32_t* const index = tokens.index + tokens.first[row];
  const std::int32_t most = std::min(count - i, tokens.kv.page_tokens - index[i] % tokens.kv.page_tokens);
  std::int32_t n = 1;
  while (n < most && index[i + n] == index[i] + n) ++n;
  return n;
}

void copy_channels(TokenCopyWay way, const std::uint8_t* mask, std::int32_t d, float* x, float* stored) {
  for (std::int32_t c = 0; c < d; ++c) {
    const bool stays = (mask[c / 8] >> (c % 8) & 1U) != 0;
    if (way == TokenCopyWay::kIntoPages)
      x[c] = stays ? *stored++ : 0.0F;
    else if (stays)
      *stored++ = x[c];
  }
}

}  // namespace

void run_cpu(const VectorCopy& a) {
  const std::int32_t d = a.tokens.kv.head_dim, mask_bytes = (d + 7) / 8;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::int32_t tokens = a.tokens.count(r);
    for (std::int32_t i = 0, count = 1; i < tokens; i += count) {
      float *const x = a.tokens.at(r, i), *const stored = static_cast<float*>(a.stored) + (a.tokens.first[r] + i) * a.width();
      if (a.channels != nullptr) {
        copy_channels(a.way, a.channels + std::int64_t{r} * mask_bytes, d, x, stored);
        continue;
      }
      count = run_length(a.tokens, r, i, tokens);
      const bool from_pages = a.way == TokenCopyWay::kFromPages;
      std::copy_n(from_pages ? x : stored, std::int64_t{count} * d, from_pages ? stored : x);
    }
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
