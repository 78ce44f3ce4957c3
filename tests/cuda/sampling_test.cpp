#include "kernels/model/sampling/sampling.h"

#include <algorithm>

#include "tests/cuda/cuda_fixture.h"

namespace kvlab {
namespace {

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
