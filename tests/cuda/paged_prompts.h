#pragma once

#include "base/ceil_div.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "tests/cuda/cuda_fixture.h"
#include "tests/plain_softmax.h"

namespace kvlab {

// Prompts with random queries, and random keys and values in pages in random order; pages that no row holds, and slots beyond a row's end,
// are NaN, so that a read of them shows.
template <class T>
struct PagedPrompts {
  std::int32_t q_heads, kv_heads, head_dim, page_tokens;
  std::vector<std::int32_t> query_first{0}, kv_before, page_begin, page;  // kv_before [prompts * kv_heads]
  std::vector<T> q, k, v;
  std::int32_t longest = 0;

  // new_tokens [prompts], before [prompts * kv_heads]; `own`: the new tokens' keys are in the cache.
  PagedPrompts(std::int32_t q_heads_, std::int32_t kv_heads_, std::int32_t head_dim_, std::int32_t page_tokens_,
               const std::vector<std::int32_t>& new_tokens, std::vector<std::int32_t> before, std::uint64_t seed, bool own = true,
               float deviation = 1.0F)
      : q_heads(q_heads_), kv_heads(kv_heads_), head_dim(head_dim_), page_tokens(page_tokens_), kv_before(std::move(before)) {
    for (const std::int32_t n : new_tokens) query_first.push_back(query_first.back() + n);
    std::int32_t pages = 0;
    for (std::size_t r = 0; r < kv_before.size(); ++r) {
      len_.push_back(kv_before[r] + (own ? new_tokens[r / static_cast<std::size_t>(kv_heads)] : 0));
      longest = std::max(longest, len_.back());
      page_begin.push_back(pages);
      pages += ceil_div(len_.back(), page_tokens);
    }
    const std::int32_t spare = 3;
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages + spare));
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(seed);
    std::shuffle(order.begin(), order.end(), random);
    page.assign(order.begin(), order.begin() + pages);
    q = random_elements<T>(static_cast<std::int64_t>(query_first.back()) * q_heads * head_dim, seed + 1, deviation);
    const std::int64_t elements = static_cast<std::int64_t>(order.size()) * page_tokens * head_dim;
    k = random_elements<T>(elements, seed + 2, deviation), v = random_elements<T>(elements, seed + 3);
    spoil();
  }

  [[nodiscard]] std::int32_t prompts() const { return static_cast<std::int32_t>(query_first.size()) - 1; }
  [[nodiscard]] std::int32_t tokens() const { return query_first.back(); }
  [[nodiscard]] std::int32_t group() const { return q_heads / kv_heads; }
  [[nodiscard]] std::int32_t len(std::size_t row) const { return len_[row]; }
  [[nodiscard]] std::size_t slot(std::size_t row, std::int32_t i) const {
    return static_cast<std::size_t>(page[static_cast<std::size_t>(page_begin[row] + i / page_tokens)] * page_tokens + i % page_tokens);
  }

  // Logits, scaled, of query head `head` of token `t` of a prompt for the tokens [0, seen) of its row.
  [[nodiscard]] std::vector<double> logits(std::int32_t prompt, std::int32_t t, std::int32_t head, std::int32_t seen, float scale) const {
    const auto d = static_cast<std::size_t>(head_dim), row = row_of(prompt, head);
    const T* const x =
        q.data() + (static_cast<std::size_t>(query_first[static_cast<std::size_t>(prompt)] + t) * static_cast<std::size_t>(q_heads) +
                    static_cast<std::size_t>(head)) *
                       d;
    std::vector<double> z(static_cast<std::size_t>(seen));
    for (std::int32_t i = 0; i < seen; ++i) {
      const T* const key = k.data() + slot(row, i) * d;
      double sum = 0;
      for (std::size_t c = 0; c < d; ++c) sum += static_cast<double>(to_float(x[c])) * static_cast<double>(to_float(key[c]));
      z[static_cast<std::size_t>(i)] = sum * static_cast<double>(scale);
    }
    return z;
  }
  [[nodiscard]] std::size_t row_of(std::int32_t prompt, std::int32_t head) const {
    return static_cast<std::size_t>(prompt * kv_heads + head / group());
  }

 private:
  void spoil() {
    std::vector<bool> held(k.size() / static_cast<std::size_t>(head_dim), false);
    for (std::size_t r = 0; r < len_.size(); ++r)
      for (std::int32_t i = 0; i < len_[r]; ++i) held[slot(r, i)] = true;
    for (std::size_t i = 0; i < k.size(); ++i)
      if (!held[i / static_cast<std::size_t>(head_dim)]) k[i] = v[i] = from_float<T>(NAN);
  }
  std::vector<std::int32_t> len_;
};

// The same in device memory.
template <class T>
struct DevicePrompts {
  explicit DevicePrompts(const PagedPrompts<T>& p)
      : host(p), q(p.q), k(p.k), v(p.v), query_first(p.query_first), kv_before(p.kv_before), page_begin(p.page_begin), page(p.page) {}
  [[nodiscard]] DevicePrefill prefill() const {
    DevicePrefill a;
    a.q = q.data(), a.k = k.data(), a.v = v.data();
    a.query_first = query_first.data(), a.kv_before = kv_before.data(), a.page_begin = page_begin.data(), a.page = page.data();
    a.prompts = host.prompts(), a.tokens = host.tokens(), a.longest_kv = host.longest;
    a.q_heads = host.q_heads, a.kv_heads = host.kv_heads, a.head_dim = host.head_dim, a.page_tokens = host.page_tokens;
    a.scale = 1.0F / std::sqrt(static_cast<float>(host.head_dim));
    a.type = kElementType<T>;
    return a;
  }
  const PagedPrompts<T>& host;
  DeviceBuffer<T> q, k, v;
  DeviceBuffer<std::int32_t> query_first, kv_before, page_begin, page;
};

struct AttendedPrompts {
  std::vector<float> out, log_sum;
};

// Attention in double precision: head `head` of a prompt's token `t` sees the tokens i < end of its row with sees(prompt, head, t, i, end);
// the new tokens' keys up to its own are in the row if `causal`.
template <class T, class Sees>
AttendedPrompts attended(const PagedPrompts<T>& p, float scale, bool causal, const Sees& sees) {
  const auto d = static_cast<std::size_t>(p.head_dim);
  AttendedPrompts result;
  for (std::int32_t prompt = 0; prompt < p.prompts(); ++prompt) {
    const auto s = static_cast<std::size_t>(prompt);
    for (std::int32_t t = 0; t < p.query_first[s + 1] - p.query_first[s]; ++t)
      for (std::int32_t h = 0; h < p.q_heads; ++h) {
        const std::size_t row = p.row_of(prompt, h);
        const std::int32_t end = p.kv_before[row] + (causal ? t + 1 : 0);
        std::vector<double> z = p.logits(prompt, t, h, end, scale);
        for (std::int32_t i = 0; i < end; ++i)
          if (!sees(prompt, h, t, i, end)) z[static_cast<std::size_t>(i)] = -INFINITY;
        result.log_sum.push_back(static_cast<float>(plain_softmax(z)));
        std::vector<double> out(d, 0.0);
        for (std::int32_t i = 0; i < end; ++i)
          for (std::size_t c = 0; c < d; ++c) {
            const double x = z[static_cast<std::size_t>(i)];
            if (x > 0) out[c] += x * static_cast<double>(to_float(p.v[p.slot(row, i) * d + c]));
          }
        result.out.insert(result.out.end(), out.begin(), out.end());
      }
  }
  return result;
}

// Probabilities and the result are rounded to T, an error of 2^-9 (bf16) or 2^-12 (f16) each of numbers near 1; logits are sums in fp32.
template <class T>
constexpr double kTolerance = kElementType<T> == ElementType::kBf16 ? 0x1p-7 : 0x1p-10;

class PrefillTest : public CudaTest {
 protected:
  // `prefill`: the part of `call` that takes the results.
  template <class T, class Call>
  void check_attended(const PagedPrompts<T>& p, Call& call, DevicePrefill& prefill, const AttendedPrompts& expected) {
    const std::int64_t lines = static_cast<std::int64_t>(p.tokens()) * p.q_heads;
    std::vector<float> log_sum;
    const auto out = same_in_every_order([&] {
      const DeviceBuffer<T> device_out(lines * p.head_dim);
      const DeviceBuffer<float> device_log_sum(lines);
      prefill.out = device_out.data(), prefill.log_sum = device_log_sum.data();
      run_cuda(call, cuda());
      log_sum = device_log_sum.to_host(cuda().stream());
      return device_out.to_host(cuda().stream());
    });
    EXPECT_TRUE(all_near(floats(out), expected.out, kTolerance<T>, kTolerance<T>));
    EXPECT_TRUE(all_near(log_sum, expected.log_sum, 1e-4, 1e-4, true));  // sums of head_dim products in fp32
  }
};

}  // namespace kvlab
