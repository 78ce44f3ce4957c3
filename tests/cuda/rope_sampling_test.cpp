#include "kernels/model/layer/layer.h"
#include "kernels/model/sampling/sampling.h"
#include "tests/cuda/cuda_fixture.h"

namespace kvlab {
namespace {

constexpr std::int64_t kLines = 37;

std::vector<float> table(std::int64_t half, bool cosines) {
  std::vector<float> x;
  for (std::int64_t p = 0; p < kLines; ++p)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p * 7) * std::pow(500.0, -static_cast<double>(i) / static_cast<double>(half));
      x.push_back(static_cast<float>(cosines ? std::cos(angle) : std::sin(angle)));
    }
  return x;
}

std::vector<std::int32_t> positions(std::int64_t tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> p(static_cast<std::size_t>(tokens));
  for (std::int32_t& x : p) x = static_cast<std::int32_t>(random() % kLines);
  return p;
}

// The rotation of every token by (cos, sin) of double precision angles' tables, through the CPU version.
std::vector<float> expected(std::vector<float> x, const Rope& a, const std::vector<float>& cos, const std::vector<float>& sin,
                            const std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from) {
  const std::int64_t half = a.head_dim / 2;
  std::vector<float> c, s;
  for (std::int64_t t = 0; t < a.tokens; ++t)
    for (std::int64_t i = 0; i < half; ++i) {
      const auto at = [&](const std::vector<std::int32_t>& p) {
        return static_cast<std::size_t>((p.empty() ? t : p[static_cast<std::size_t>(t)]) * half + i);
      };
      double x_cos = cos[at(to)], x_sin = sin[at(to)];
      if (!from.empty()) {
        const double y_cos = cos[at(from)], y_sin = sin[at(from)], both = x_cos * y_cos + x_sin * y_sin;
        x_sin = x_sin * y_cos - x_cos * y_sin, x_cos = both;
      }
      c.push_back(static_cast<float>(x_cos)), s.push_back(static_cast<float>(a.inverse ? -x_sin : x_sin));
    }
  run_cpu(Rope{x.data(), x.data(), c.data(), s.data(), nullptr, nullptr, a.tokens, a.heads, a.head_dim});
  return x;
}

class RopeCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int64_t tokens, std::int64_t heads, std::int64_t head_dim, bool listed, bool moved, bool inverse, double tolerance) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << heads << " x " << head_dim << " listed " << listed << " moved " << moved
                                    << " inverse " << inverse);
    const auto x = random_elements<T>(tokens * heads * head_dim, 11);
    const auto cos = table(head_dim / 2, true), sin = table(head_dim / 2, false);
    const auto to = listed ? positions(tokens, 1) : std::vector<std::int32_t>{},
               from = moved ? positions(tokens, 2) : std::vector<std::int32_t>{};
    const DeviceBuffer<float> device_cos(cos), device_sin(sin);
    const DeviceBuffer<std::int32_t> device_to(to), device_from(from);
    Rope a{
        nullptr, nullptr, device_cos.data(), device_sin.data(), listed ? device_to.data() : nullptr, moved ? device_from.data() : nullptr,
        tokens,  heads,   head_dim};
    a.inverse = inverse, a.type = kElementType<T>;
    const auto out = same_in_every_order([&] {
      const DeviceBuffer<T> in_place(x);
      a.in = a.out = in_place.data();
      run_cuda(a, cuda());
      return in_place.to_host(cuda().stream());
    });
    EXPECT_TRUE(all_near(floats(out), expected(floats(x), a, cos, sin, to, from), tolerance * 4, tolerance));
  }
};

// One rounding of a sum of two products of numbers up to 4; products cancel, hence the absolute part.
TEST_F(RopeCuda, EqualsCpuVersion) {
  for (const std::int64_t heads : {1, 3, 4, 5, 40})
    for (const std::int64_t head_dim : {2, 6, 16, 64, 128}) {
      check<bf16>(3, heads, head_dim, false, false, false, 0x1p-8);
      check<f16>(2, heads, head_dim, true, false, true, 0x1p-11);
      check<float>(1, heads, head_dim, true, true, false, 1e-6);
    }
  check<bf16>(33, 8, 128, true, true, true, 0x1p-8);
  check<bf16>(2, 128, 256, true, false, false, 0x1p-8);
  check<bf16>(0, 8, 128, false, false, false, 0);
}

// A move equals undoing the old rotation and applying the new one, and the inverse undoes a rotation.
TEST_F(RopeCuda, MovesKeysFromPositionToPosition) {
  constexpr std::int64_t kTokens = 19, kHeads = 2, kDim = 32;
  const auto x = random_elements<float>(kTokens * kHeads * kDim, 5);
  const DeviceBuffer<float> cos(table(kDim / 2, true)), sin(table(kDim / 2, false)), old_keys(x), direct(x);
  const DeviceBuffer<std::int32_t> old_position(positions(kTokens, 3)), new_position(positions(kTokens, 4));
  const auto turn = [&](float* keys, const std::int32_t* to, const std::int32_t* from, bool inverse) {
    Rope a{keys, keys, cos.data(), sin.data(), to, from, kTokens, kHeads, kDim};
    a.inverse = inverse, a.type = ElementType::kF32;
    run_cuda(a, cuda());
  };
  turn(old_keys.data(), old_position.data(), nullptr, false);
  turn(old_keys.data(), new_position.data(), old_position.data(), false);
  turn(direct.data(), new_position.data(), nullptr, false);
  EXPECT_TRUE(all_near(old_keys.to_host(cuda().stream()), direct.to_host(cuda().stream()), 4e-6, 0));  // three roundings of numbers to 4
  turn(old_keys.data(), new_position.data(), nullptr, true);
  EXPECT_TRUE(all_near(old_keys.to_host(cuda().stream()), x, 6e-6, 0));
}

// Queries, keys and values are adjacent in one product's output; rotated vectors may go elsewhere.
TEST_F(RopeCuda, TakesStrides) {
  constexpr std::int64_t kTokens = 5, kHeads = 3, kDim = 16, kIn = 96, kOut = 56;
  const auto x = random_elements<bf16>(kTokens * kIn, 6);
  const auto cos = table(kDim / 2, true), sin = table(kDim / 2, false);
  const DeviceBuffer<float> device_cos(cos), device_sin(sin);
  const DeviceBuffer<bf16> in(x), out(std::vector<bf16>(kTokens * kOut, bf16{0x4000}));
  Rope a{in.data() + 8, out.data(), device_cos.data(), device_sin.data(), nullptr, nullptr, kTokens, kHeads, kDim, kIn,
         kOut,          false,      ElementType::kBf16};
  run_cuda(a, cuda());
  std::vector<float> dense, got, beside;
  const std::vector<float> all = floats(out.to_host(cuda().stream())), source = floats(x);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    dense.insert(dense.end(), source.begin() + t * kIn + 8, source.begin() + t * kIn + 8 + kHeads * kDim);
    got.insert(got.end(), all.begin() + t * kOut, all.begin() + t * kOut + kHeads * kDim);
    beside.insert(beside.end(), all.begin() + t * kOut + kHeads * kDim, all.begin() + (t + 1) * kOut);
  }
  EXPECT_TRUE(all_near(got, expected(dense, a, cos, sin, {}, {}), 0x1p-6, 0x1p-8));
  EXPECT_EQ(beside, std::vector<float>(beside.size(), 2.0F));
  a.head_dim = 15;
  EXPECT_THROW(run_cuda(a, cuda()), CudaError);
}

class SamplingCuda : public CudaTest {
 protected:
  template <class T>
  std::vector<std::int32_t> sample(const std::vector<T>& logits, const std::vector<float>& temperature,
                                   const std::vector<std::uint64_t>& key, std::int64_t rows, std::int64_t vocabulary) {
    const DeviceBuffer<T> device_logits(logits);
    const DeviceBuffer<float> device_temperature(temperature);
    const DeviceBuffer<std::uint64_t> device_key(key);
    return same_in_every_order([&] {
      const DeviceBuffer<std::int32_t> token(rows);
      run_cuda(Sampling{device_logits.data(), temperature.empty() ? nullptr : device_temperature.data(), device_key.data(), token.data(),
                        rows, vocabulary, 0, kElementType<T>},
               cuda());
      return token.to_host(cuda().stream());
    });
  }

  // The same tokens as the CPU version, or such whose sums are equal up to rounding.
  template <class T>
  void check(std::int64_t rows, std::int64_t vocabulary, float deviation) {
    SCOPED_TRACE(testing::Message() << rows << " x " << vocabulary);
    const auto logits = random_elements<T>(rows * vocabulary, 21, deviation);
    std::vector<float> temperature, x = floats(logits);
    std::vector<std::uint64_t> key;
    for (std::int64_t r = 0; r < rows; ++r) {
      temperature.push_back(r % 3 == 0 ? 0.0F : 0.25F * static_cast<float>(r));
      key.push_back(sampling_key(5, static_cast<std::uint64_t>(r), 77));
    }
    std::vector<std::int32_t> expected(static_cast<std::size_t>(rows));
    run_cpu(Sampling{x.data(), temperature.data(), key.data(), expected.data(), rows, vocabulary});
    const auto got = sample(logits, temperature, key, rows, vocabulary);
    for (std::size_t r = 0; r < got.size(); ++r) {
      ASSERT_TRUE(got[r] >= 0 && got[r] < vocabulary) << "row " << r << ": " << got[r];
      if (got[r] == expected[r]) continue;
      const auto sum = [&](std::int32_t token) {
        const float z = x[r * static_cast<std::size_t>(vocabulary) + static_cast<std::size_t>(token)];
        return temperature[r] > 0 ? z / temperature[r] + gumbel_noise(sampling_bits(key[r], static_cast<std::uint32_t>(token))) : z;
      };
      ASSERT_GT(temperature[r], 0.0F);
      EXPECT_NEAR(sum(got[r]), sum(expected[r]), 1e-5 * (1 + std::abs(sum(got[r])))) << "row " << r;
    }
  }
};

TEST_F(SamplingCuda, PicksWhatTheCpuPicks) {
  for (const std::int64_t vocabulary : {1, 7, 8, 31, 32, 4095, 4096, 4097, 8192, 8200, 40000}) {
    check<bf16>(4, vocabulary, 3.0F);
    check<f16>(2, vocabulary, 0.1F);
    check<float>(2, vocabulary, 30.0F);
  }
  const FlatGrids flat;
  check<bf16>(17, 512, 1.0F);
  check<bf16>(0, 512, 1.0F);
}

TEST_F(SamplingCuda, TiesGoToTheLowestToken) {
  constexpr std::int64_t kVocabulary = 20000;
  std::vector<float> logits(kVocabulary, 1.5F);
  EXPECT_EQ(sample(logits, {}, {}, 1, kVocabulary)[0], 0);
  logits[777] = logits[778] = logits[19999] = 2.0F;
  EXPECT_EQ(sample(logits, {}, {}, 1, kVocabulary)[0], 777);
  logits[12000] = logits[4000] = kInf;
  EXPECT_EQ(sample(logits, {}, {}, 1, kVocabulary)[0], 4000);
  EXPECT_EQ(sample(logits, {1.0F}, {3}, 1, kVocabulary)[0], 4000);
}

TEST_F(SamplingCuda, NeverPicksNanOrMinusInfinity) {
  constexpr std::int64_t kVocabulary = 700;
  std::vector<float> logits(kVocabulary, -kInf);
  for (std::size_t i = 0; i < kVocabulary; i += 2) logits[i] = std::nanf("");
  EXPECT_EQ(sample(logits, {}, {}, 1, kVocabulary)[0], 0);
  EXPECT_EQ(sample(logits, {0.5F}, {4}, 1, kVocabulary)[0], 0);
  logits[613] = -1e30F;
  EXPECT_EQ(sample(logits, {}, {}, 1, kVocabulary)[0], 613);
  EXPECT_EQ(sample(logits, {0.5F}, {4}, 1, kVocabulary)[0], 613);
}

// Counts over many keys against softmax(logits / temperature), on both backends: a chi-square of 7 degrees of freedom exceeds 40 with
// probability 1e-6.
TEST_F(SamplingCuda, DrawsFromTheSoftmax) {
  constexpr std::int64_t kRows = 6000, kVocabulary = 8;
  const std::vector<float> one{0.3F, -1.0F, 2.0F, 0.0F, 1.0F, -2.0F, 0.7F, 1.9F};
  const float temperature = 1.7F;
  std::vector<float> logits;
  std::vector<std::uint64_t> key;
  for (std::int64_t r = 0; r < kRows; ++r) {
    logits.insert(logits.end(), one.begin(), one.end());
    key.push_back(sampling_key(9, static_cast<std::uint64_t>(r / 100), static_cast<std::uint64_t>(r % 100)));
  }
  std::vector<double> p;
  double total = 0;
  for (const float z : one) p.push_back(std::exp(static_cast<double>(z) / static_cast<double>(temperature))), total += p.back();
  const std::vector<float> temperatures(kRows, temperature);
  std::vector<std::int32_t> on_cpu(kRows);
  run_cpu(Sampling{logits.data(), temperatures.data(), key.data(), on_cpu.data(), kRows, kVocabulary});
  const auto some = sample(logits, temperatures, key, 64, kVocabulary);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), on_cpu.begin()));
  std::vector<double> seen(kVocabulary), pairs(kVocabulary * kVocabulary);
  for (std::size_t r = 0; r < on_cpu.size(); ++r) {
    seen[static_cast<std::size_t>(on_cpu[r])] += 1;
    if (r > 0) pairs[static_cast<std::size_t>(on_cpu[r - 1] * kVocabulary + on_cpu[r])] += 1;
  }
  double chi = 0, chi_pairs = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    chi += std::pow(seen[i] - kRows * p[i] / total, 2) / (kRows * p[i] / total);
    for (std::size_t j = 0; j < p.size(); ++j) {
      const double wanted = kRows * p[i] / total * p[j] / total;
      chi_pairs += std::pow(pairs[i * p.size() + j] - wanted, 2) / wanted;
    }
  }
  EXPECT_LT(chi, 40.0);
  EXPECT_LT(chi_pairs, 130.0);  // 63 degrees of freedom: mean 63, deviation 11
}

// One token as likely as the 2,999 others together.
TEST_F(SamplingCuda, NoiseReachesFarEnough) {
  constexpr std::int64_t kRows = 200, kVocabulary = 3000;
  const float logit = std::log(static_cast<float>(kVocabulary - 1));
  std::vector<float> logits(kRows * kVocabulary, 0.0F);
  std::vector<std::uint64_t> key;
  for (std::int64_t r = 0; r < kRows; ++r) {
    logits[static_cast<std::size_t>(r * kVocabulary + 2000)] = logit;
    key.push_back(sampling_key(10, static_cast<std::uint64_t>(r), 0));
  }
  const std::vector<float> temperature(kRows, 1.0F);
  std::vector<std::int32_t> token(kRows);
  run_cpu(Sampling{logits.data(), temperature.data(), key.data(), token.data(), kRows, kVocabulary});
  const auto hits = std::count(token.begin(), token.end(), 2000);
  EXPECT_NEAR(static_cast<double>(hits), 100.0, 35.0);  // five deviations
}

// Sums with so many digits before the point have few after it: many are equal, and a token whose sum is the largest is seen regardless of
// what other threads have found before.
TEST_F(SamplingCuda, EqualLogitsAtLowTemperatures) {
  constexpr std::int64_t kVocabulary = 4096;
  const std::int64_t rows = short_run() ? 100 : 400;
  for (const float t : {1e-4F, 1e-5F, 1e-7F}) {
    SCOPED_TRACE(testing::Message() << "temperature " << t);
    std::vector<float> logits;
    std::vector<std::uint64_t> key;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float largest = 15.0F + 0.0217F * static_cast<float>(r);
      for (std::int64_t i = 0; i < kVocabulary; ++i) logits.push_back(i % 3 == 0 ? largest : largest - 0.5F * static_cast<float>(i % 3));
      key.push_back(sampling_key(11, static_cast<std::uint64_t>(r), 3));
    }
    const std::vector<float> temperature(static_cast<std::size_t>(rows), t);
    std::vector<std::int32_t> expected(static_cast<std::size_t>(rows));
    run_cpu(Sampling{logits.data(), temperature.data(), key.data(), expected.data(), rows, kVocabulary});
    const auto got = sample(logits, temperature, key, rows, kVocabulary);
    for (std::size_t r = 0; r < got.size(); ++r) {
      if (got[r] == expected[r]) continue;
      ASSERT_NE(cuda_backend(), CudaBackend::kEmulated) << "row " << r;  // a GPU's logarithms have other last digits
      const auto sum = [&](std::int32_t token) {
        return logits[r * kVocabulary + static_cast<std::size_t>(token)] * (1.0F / t) +
               gumbel_noise(sampling_bits(key[r], static_cast<std::uint32_t>(token)));
      };
      EXPECT_NEAR(sum(got[r]), sum(expected[r]), 2.5e-7F * sum(expected[r])) << "row " << r;
    }
  }
}

TEST_F(SamplingCuda, RefusesWhatItCannotCount) {
  EXPECT_THROW(run_cuda(Sampling{nullptr, nullptr, nullptr, nullptr, 1, 0}, cuda()), CudaError);
}

}  // namespace
}  // namespace kvlab
