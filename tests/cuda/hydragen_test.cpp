#include "kernels/hydragen/hydragen_cuda.h"
#include "tests/cuda/paged_cache.h"
#include "tests/cuda/paged_prompts.h"

namespace kvlab {
namespace {

class HydragenCuda : public CudaTest {
 protected:
  // Sequences per prefix, tokens of each prefix and KV head, tokens of each sequence's row.
  template <class T>
  void check(std::int32_t group, std::int32_t kv_heads, const std::vector<std::int32_t>& sharing,
             const std::vector<std::int32_t>& prefix_len, const std::vector<std::int32_t>& suffix_len, double tolerance) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << ", group " << group);
    constexpr std::int32_t kDim = 64;
    const std::int32_t heads = group * kv_heads;
    PagedCache cache(
        {kElementType<T> == ElementType::kF16 ? KvFormat::kF16 : KvFormat::kBf16, kElementType<T>, kDim, group, kv_heads, 16, suffix_len});
    PagedPrompts<T> prefix(heads, kv_heads, kDim, 32, sharing, prefix_len, 5, false);
    DecodeOutputs o(cache);
    DeviceHydragen a;
    a.suffix = cache.call(o);
    a.suffix.column_sum = nullptr;
    cuda::to_host(prefix.q.data(), a.suffix.q, static_cast<std::int64_t>(prefix.q.size() * sizeof(T)), cuda().stream());
    cuda().synchronize();
    const DevicePrompts<T> device(prefix);
    a.prefix_k = device.k.data(), a.prefix_v = device.v.data(), a.sequence_first = device.query_first.data();
    a.prefix_len = device.kv_before.data(), a.prefix_page_begin = device.page_begin.data(), a.prefix_page = device.page.data();
    a.prefixes = prefix.prompts(), a.prefix_page_tokens = 32, a.longest_prefix = prefix.longest;
    const auto out = same_in_every_order([&] {
      run_cuda(a, cuda());
      return o.read_out(kElementType<T>);
    });
    expect(prefix, cache.reference(), out, o.log_sum.to_host(), tolerance);
  }

  template <class T>
  static void expect(const PagedPrompts<T>& prefix, const DecodeReference& suffix, const std::vector<float>& out,
                     const std::vector<float>& log_sum, double tolerance) {
    const auto d = static_cast<std::size_t>(prefix.head_dim);
    std::vector<float> expected, expected_log_sum;
    for (std::int32_t p = 0, s = 0; p < prefix.prompts(); ++p) {
      for (; s < prefix.query_first[static_cast<std::size_t>(p) + 1]; ++s) {
        for (std::int32_t h = 0; h < prefix.q_heads; ++h) {
          const std::size_t row = prefix.row_of(p, h), line = static_cast<std::size_t>(s * prefix.q_heads + h);
          const std::int32_t n = prefix.kv_before[row];
          const std::vector<double> z =
              prefix.logits(p, s - prefix.query_first[static_cast<std::size_t>(p)], h, n, 1.0F / std::sqrt(static_cast<float>(d)));
          double sum = std::exp(static_cast<double>(suffix.log_sum[line]));
          std::vector<double> x(d, 0.0);
          for (std::size_t c = 0; c < d && sum > 0; ++c) x[c] = sum * static_cast<double>(suffix.out[line * d + c]);
          for (std::int32_t i = 0; i < n; ++i) {
            const double e = std::exp(z[static_cast<std::size_t>(i)]);
            sum += e;
            for (std::size_t c = 0; c < d; ++c) x[c] += e * static_cast<double>(to_float(prefix.v[prefix.slot(row, i) * d + c]));
          }
          for (const double y : x) expected.push_back(static_cast<float>(y / sum));
          expected_log_sum.push_back(static_cast<float>(std::log(sum)));
        }
      }
    }
    EXPECT_TRUE(all_near(out, expected, tolerance, tolerance));
    EXPECT_TRUE(all_near(log_sum, expected_log_sum, 1e-3, 1e-4));
  }
};

// Probabilities are rounded to T in both parts, and the result once.
TEST_F(HydragenCuda, EqualsAttentionOverPrefixAndSuffix) {
  check<bf16>(4, 2, {3, 1}, {100, 90, 0, 16}, {5, 9, 0, 40, 1, 1, 17, 3}, 0x1p-7);
  check<f16>(1, 1, {5}, {700}, {1, 20, 33, 2, 7}, 0x1p-10);
}

TEST_F(HydragenCuda, WithoutPrefixItIsDecode) {
  PagedCache cache({KvFormat::kBf16, ElementType::kBf16, 64, 2, 1, 16, {20, 5}});
  DecodeOutputs o(cache);
  DeviceHydragen a;
  a.suffix = cache.call(o);
  EXPECT_THROW(
      {
        a.suffix.column_sum = o.column_sum.data();
        run_cuda(a, cuda());
      },
      CudaError);
  a.suffix.column_sum = nullptr;
  run_cuda(a, cuda());
  EXPECT_TRUE(all_near(o.read_out(ElementType::kBf16), cache.reference().out, 0x1p-7, 0x1p-7));
}

}  // namespace
}  // namespace kvlab
