#include <algorithm>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/attention/append_kv/append_kv.h"

namespace kvlab {

namespace {

void append_token(const AppendRows& a, const AppendedTokens& news, std::int32_t i) {
  const KvRows& kv = a.kv;
  const std::int64_t d = kv.head_dim, stride = a.token_stride != 0 ? a.token_stride : kv.kv_heads * d;
  const float *k = static_cast<const float*>(news.k) + i * stride, *v = static_cast<const float*>(news.v) + i * stride;
  for (std::int32_t h = 0; h < kv.kv_heads; ++h) {
    const std::int32_t row = news.sequence * kv.kv_heads + h;
    const std::int64_t slot = kv.slot(row, kv.len[row] - news.count + i);
    std::copy_n(k + h * d, d, kv.k + slot * d);
    std::copy_n(v + h * d, d, kv.v + slot * d);
    kv.position[slot] = news.first_position + i;
    for (std::int32_t w = 0; w < kv.num_words; ++w) kv.words[w * kv.pool_tokens + slot] = 0;
  }
}

}  // namespace

void run_cpu(const AppendRows& a) {
  constexpr std::int32_t kPart = 64;  // tokens per thread
  for (const AppendedTokens& news : a.news) {
    for_each_in_parallel(ceil_div(news.count, kPart), [&](std::int64_t part) {
      const auto begin = static_cast<std::int32_t>(part) * kPart;
      for (std::int32_t i = begin; i < std::min(begin + kPart, news.count); ++i) append_token(a, news, i);
    });
  }
}

}  // namespace kvlab
