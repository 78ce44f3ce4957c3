#include "kernels/attention/attention_prefill/attention_prefill.h"

#include "tests/cuda/paged_prompts.h"

namespace kvlab {
namespace {

template <class T>
AttendedPrompts reference(const PagedPrompts<T>& p, const DevicePrefill& a) {
  return attended(p, a.scale, a.causal, [&](std::int32_t, std::int32_t, std::int32_t, std::int32_t i, std::int32_t end) {
    return a.window == 0 || i >= end - a.window;
  });
}

class AttentionPrefillCuda : public PrefillTest {
 protected:
  template <class T>
  void check(const PagedPrompts<T>& p, DevicePrefill options = {}) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << ", " << p.q_heads << " on " << p.kv_heads << " heads of " << p.head_dim
                                    << ", tuning " << options.tuning << ", window " << options.window);
    const DevicePrompts<T> device(p);
    DevicePrefill a = device.prefill();
    a.causal = options.causal, a.window = options.window, a.tuning = options.tuning, a.splits = options.splits;
    check_attended(p, a, a, reference(p, a));
  }
};

DevicePrefill tuned(int tuning, int splits = 0) {
  DevicePrefill a;
  a.tuning = tuning, a.splits = splits;
  return a;
}

class AttentionPrefillVariant : public AttentionPrefillCuda, public testing::WithParamInterface<int> {};

// 80 tokens of three prompts: a tile and more, one token, less than a tile; each KV head with a number of cached tokens of its own.
TEST_P(AttentionPrefillVariant, EqualsTheFormula) {
  for (const std::int32_t head_dim : {64, 128}) {
    if (GetParam() >= static_cast<int>(prefill_variants(head_dim).size())) continue;
    check(PagedPrompts<bf16>(4, 2, head_dim, 16, {70, 1, 9}, {0, 0, 5, 64, 100, 31}, 1), tuned(GetParam(), 1));
    check(PagedPrompts<f16>(2, 1, head_dim, 48, {17}, {200}, 2), tuned(GetParam(), 1));
  }
}
INSTANTIATE_TEST_SUITE_P(Tiles, AttentionPrefillVariant, testing::Range(0, 6));

TEST_F(AttentionPrefillCuda, EqualsTheFormula) {
  check(PagedPrompts<bf16>(2, 1, 256, 16, {34, 3}, {5, 64}, 5));
  check(PagedPrompts<f16>(1, 1, 256, 64, {70}, {0}, 6));
  for (const std::int32_t n : {1, 15, 16, 17, 31, 63, 64, 65}) check(PagedPrompts<f16>(1, 1, 64, 32, {n}, {n % 3 * 16}, 10), tuned(1));
  check(PagedPrompts<bf16>(2, 2, 64, 16, {0, 5, 0}, {7, 7, 3, 64, 0, 0}, 11));
  for (const std::int32_t group : {1, 3, 7, 8, 16}) check(PagedPrompts<bf16>(2 * group, 2, 64, 16, {21}, {10, 30}, 20), tuned(1));
  for (const std::int32_t window : {1, 16, 63, 64, 65, 150, 1000}) {
    DevicePrefill a = tuned(window % 2);
    a.window = window;
    check(PagedPrompts<f16>(2, 1, 64, 16, {90}, {130}, 30), a);
  }
  DevicePrefill a = tuned(0);
  a.causal = false;
  for (const std::int32_t n : {0, 1, 63, 64, 130}) check(PagedPrompts<bf16>(4, 1, 64, 16, {40}, {n}, 40, false), a);
  for (const int splits : {2, 5, 30}) check(PagedPrompts<bf16>(4, 2, 64, 16, {3, 20}, {500, 490, 0, 64}, 50), tuned(1, splits));
  check(PagedPrompts<bf16>(4, 2, 64, 16, {3, 20}, {700, 690, 0, 64}, 51));  // as many as it chooses
  // A block lists the places of 256 units of 16 tokens at a time.
  check(PagedPrompts<f16>(1, 1, 64, 16, {2}, {4200}, 60), tuned(1, 1));
  // Logits of some thousands: the largest one takes all.
  check(PagedPrompts<bf16>(2, 1, 64, 16, {30}, {70}, 70, true, 30.0F), tuned(0));
  check(PagedPrompts<f16>(2, 1, 64, 16, {30}, {70}, 71, true, 100.0F), tuned(1));
}

// The first query's NaN stays its own.
TEST_F(AttentionPrefillCuda, NanStaysInItsRow) {
  PagedPrompts<bf16> p(1, 1, 64, 16, {20}, {10}, 80);
  p.q[3] = from_float<bf16>(NAN);
  const DevicePrompts<bf16> device(p);
  const DeviceBuffer<bf16> out(20 * 64);
  DevicePrefill a = device.prefill();
  a.out = out.data();
  run_cuda(a, cuda());
  const std::vector<float> got = floats(out.to_host(cuda().stream()));
  EXPECT_TRUE(std::isnan(got[0]));
  EXPECT_TRUE(std::all_of(got.begin() + 64, got.end(), [](float x) { return std::isfinite(x); }));
}

TEST_F(AttentionPrefillCuda, QueriesMayBeApart) {
  PagedPrompts<bf16> p(2, 1, 64, 16, {40}, {10}, 90);
  const std::vector<float> expected = reference(p, DevicePrompts<bf16>(p).prefill()).out;
  std::vector<bf16> apart(40 * 192, from_float<bf16>(NAN));
  for (std::size_t t = 0; t < 40; ++t) std::copy_n(p.q.data() + t * 128, 128, apart.data() + t * 192);
  const DevicePrompts<bf16> device(p);
  const DeviceBuffer<bf16> q(apart), out(40 * 128);
  DevicePrefill a = device.prefill();
  a.q = q.data(), a.q_stride = 192, a.out = out.data();
  run_cuda(a, cuda());
  EXPECT_TRUE(all_near(floats(out.to_host(cuda().stream())), expected, kTolerance<bf16>, kTolerance<bf16>));
}

TEST_F(AttentionPrefillCuda, RefusesWhatItDoesNotTake) {
  const PagedPrompts<bf16> p(2, 1, 64, 16, {4}, {0}, 95);
  const DevicePrompts<bf16> device(p);
  const DeviceBuffer<bf16> out(4 * 128);
  const auto refuses = [&](auto change, const char* word) {
    DevicePrefill a = device.prefill();
    a.out = out.data();
    change(a);
    EXPECT_THAT(cuda_error_of([&] { run_cuda(a, cuda()); }), testing::HasSubstr(word));
  };
  refuses([](DevicePrefill& a) { a.head_dim = 96; }, "head_dim 96");
  refuses([](DevicePrefill& a) { a.page_tokens = 8; }, "8 tokens in a page");
  refuses([](DevicePrefill& a) { a.q_heads = 17; }, "17 query heads");
  refuses([](DevicePrefill& a) { a.type = ElementType::kF32; }, "f32");
  refuses([](DevicePrefill& a) { a.scale = NAN; }, "scale");
  refuses([](DevicePrefill& a) { a.tuning = 9; }, "tuning 9");
  DevicePrefill empty = device.prefill();
  empty.tokens = 0;
  run_cuda(empty, cuda());
}

// One prompt, against the CPU's kernel.
TEST_F(AttentionPrefillCuda, EqualsCpuVersion) {
  const PagedPrompts<f16> p(4, 2, 128, 64, {60}, {70, 70}, 97);
  const std::vector<float> q = floats(p.q);
  std::vector<float> k, v, expected(q.size());
  for (std::int32_t i = 0; i < 130; ++i)
    for (std::size_t row = 0; row < 2; ++row)
      for (std::size_t at = p.slot(row, i) * 128; at < (p.slot(row, i) + 1) * 128; ++at)
        k.push_back(to_float(p.k[at])), v.push_back(to_float(p.v[at]));
  const DevicePrompts<f16> device(p);
  DevicePrefill a = device.prefill();
  AttentionPrefill cpu{q.data(), k.data(), v.data(), expected.data(), nullptr, 60, 70, 4, 2, 128, a.scale};
  std::vector<float> scratch(static_cast<std::size_t>(scratch_floats(cpu)));
  cpu.scratch = scratch.data();
  run_cpu(cpu);
  const DeviceBuffer<f16> out(static_cast<std::int64_t>(q.size()));
  a.out = out.data();
  run_cuda(a, cuda());
  EXPECT_TRUE(all_near(floats(out.to_host(cuda().stream())), expected, kTolerance<f16>, kTolerance<f16>));
  EXPECT_EQ(flops(shape(a, 60, 70)), flops(shape(cpu)));
}

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
          std::fill_n(z.begin(), begin, -INFINITY);
          plain_softmax(z);
          for (std::int32_t i = begin; i < seen; ++i) {
            const auto at = static_cast<std::size_t>(first[row]), key = static_cast<std::size_t>(i);
            const std::size_t to = o.by_head ? at * group + g * static_cast<std::size_t>(p.len(row)) + key : at + key;
            sums[to] += static_cast<double>(o.factor) * z[key];
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

TEST_F(PrefillScoresCuda, EqualTheFormula) {
  check(PagedPrompts<bf16>(4, 2, 128, 16, {40, 1, 33}, {0, 0, 5, 64, 100, 31}, 1), {});
  check(PagedPrompts<f16>(2, 1, 64, 32, {130}, {70}, 2), {});
  check(PagedPrompts<bf16>(1, 1, 256, 16, {20}, {50}, 3), {});
  check(PagedPrompts<bf16>(8, 2, 64, 16, {70, 9}, {100, 3, 0, 0}, 10), {.last = 64, .factor = 1.0F / 256});
  check(PagedPrompts<f16>(6, 2, 128, 16, {12}, {128, 140}, 11), {.last = 8, .factor = 0.125F});
  for (const std::int32_t group : {1, 2, 3, 4, 7, 8, 12, 16})
    check(PagedPrompts<bf16>(2 * group, 2, 64, 16, {18}, {20, 50}, 20), {.last = 10, .by_head = true, .factor = 0.1F});
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
