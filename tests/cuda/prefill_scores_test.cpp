#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "tests/cuda/paged_prompts.h"

namespace kvlab {
namespace {

struct Options {
  std::int32_t last = 0, window = 0;
  bool by_head = false;
  float factor = 1.0F;
};

class PrefillScoresCuda : public CudaTest {
 protected:
  template <class T>
  static std::vector<std::int64_t> starts(const PagedPrompts<T>& p) {
    std::vector<std::int64_t> first{0};
    for (std::size_t r = 0; r < p.kv_before.size(); ++r) first.push_back(first.back() + p.len(r));
    return first;
  }

  template <class T>
  static std::vector<float> reference(const PagedPrompts<T>& p, const Options& o, float scale) {
    const std::vector<std::int64_t> first = starts(p);
    const auto group = static_cast<std::size_t>(p.group());
    std::vector<double> sums(static_cast<std::size_t>(first.back()) * (o.by_head ? group : 1), 0.0);
    for (std::int32_t prompt = 0; prompt < p.prompts(); ++prompt) {
      const auto s = static_cast<std::size_t>(prompt);
      const std::int32_t n = p.query_first[s + 1] - p.query_first[s];
      for (std::int32_t t = o.last > 0 ? std::max(0, n - o.last) : 0; t < n; ++t) {
        for (std::int32_t h = 0; h < p.q_heads; ++h) {
          const std::size_t row = p.row_of(prompt, h), g = static_cast<std::size_t>(h % p.group());
          const std::int32_t seen = p.kv_before[row] + t + 1, begin = o.window > 0 ? std::max(0, seen - o.window) : 0;
          std::vector<double> z = p.logits(prompt, t, h, seen, scale);
          const double top = *std::max_element(z.begin() + begin, z.end());
          double sum = 0;
          for (std::int32_t i = begin; i < seen; ++i) sum += std::exp(z[static_cast<std::size_t>(i)] - top);
          for (std::int32_t i = begin; i < seen; ++i) {
            const auto at = static_cast<std::size_t>(first[row]), key = static_cast<std::size_t>(i);
            const std::size_t to = o.by_head ? at * group + g * static_cast<std::size_t>(p.len(row)) + key : at + key;
            sums[to] += static_cast<double>(o.factor) * std::exp(z[key] - top) / sum;
          }
        }
      }
    }
    return {sums.begin(), sums.end()};
  }

  template <class T>
  void check(const PagedPrompts<T>& p, const Options& o) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << ", " << p.q_heads << " on " << p.kv_heads << " heads of " << p.head_dim
                                    << ", last " << o.last << ", window " << o.window << (o.by_head ? ", by head" : ""));
    const DevicePrompts<T> device(p);
    DevicePrefill a = device.prefill();
    const DeviceBuffer<T> out(static_cast<std::int64_t>(p.q.size()));
    const DeviceBuffer<float> log_sum(static_cast<std::int64_t>(p.tokens()) * p.q_heads);
    a.window = o.window, a.out = out.data(), a.log_sum = log_sum.data();
    run_cuda(a, cuda());
    const std::vector<float> expected = reference(p, o, a.scale);
    const DeviceBuffer<std::int64_t> first(starts(p));
    DevicePrefillScores s;
    s.prefill = a, s.last = o.last, s.first = first.data(), s.by_head = o.by_head, s.factor = o.factor;
    const auto scores = same_in_every_order([&] {
      const DeviceBuffer<float> device_scores(std::vector<float>(expected.size(), NAN));
      s.scores = device_scores.data();
      run_cuda(s, cuda());
      return device_scores.to_host(cuda().stream());
    });
    EXPECT_TRUE(all_near(scores, expected, 1e-6, 1e-4));  // logits are sums of head_dim products in fp32
    const DeviceBuffer<float> twice(scores);
    s.scores = twice.data(), s.adds = true;
    run_cuda(s, cuda());
    std::vector<float> doubled = expected;
    for (float& x : doubled) x *= 2;
    EXPECT_TRUE(all_near(twice.to_host(cuda().stream()), doubled, 1e-6, 1e-4));
  }
};

TEST_F(PrefillScoresCuda, SumsOverAllQueries) {
  check(PagedPrompts<bf16>(4, 2, 128, 16, {40, 1, 33}, {0, 0, 5, 64, 100, 31}, 1), {});
  check(PagedPrompts<f16>(2, 1, 64, 32, {130}, {70}, 2), {});
  check(PagedPrompts<bf16>(1, 1, 256, 16, {20}, {50}, 3), {});
}

TEST_F(PrefillScoresCuda, WindowOfTheLastQueries) {
  check(PagedPrompts<bf16>(8, 2, 64, 16, {70, 9}, {100, 3, 0, 0}, 10), {.last = 64, .factor = 1.0F / 256});
  check(PagedPrompts<f16>(6, 2, 128, 16, {12}, {128, 140}, 11), {.last = 8, .factor = 0.125F});
}

TEST_F(PrefillScoresCuda, EachQueryHeadApart) {
  for (const std::int32_t group : {1, 2, 3, 4, 7, 8, 12, 16})
    check(PagedPrompts<bf16>(2 * group, 2, 64, 16, {18}, {20, 50}, 20), {.last = 10, .by_head = true, .factor = 0.1F});
}

TEST_F(PrefillScoresCuda, SlidingWindow) {
  for (const std::int32_t window : {1, 40, 64, 129}) check(PagedPrompts<f16>(2, 1, 64, 16, {90}, {60}, 30), {.window = window});
}

TEST_F(PrefillScoresCuda, RefusesWhatItDoesNotKnow) {
  const PagedPrompts<bf16> p(2, 1, 64, 16, {4}, {0}, 40);
  const DevicePrompts<bf16> device(p);
  DevicePrefillScores s;
  s.prefill = device.prefill();
  s.prefill.longest_kv = 0;
  EXPECT_THROW(run_cuda(s, cuda()), CudaError);
  s.prefill.longest_kv = 4, s.prefill.causal = false;
  EXPECT_THROW(run_cuda(s, cuda()), CudaError);
  s.prefill.prompts = 0;
  run_cuda(s, cuda());
}

}  // namespace
}  // namespace kvlab
