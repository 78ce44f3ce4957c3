#include <limits>

#include "base/random.h"
#include "kernels/model/sampling/sampling.h"

namespace kvlab {

namespace {

std::int32_t greedy(const float* logits, std::int64_t n) {
  std::int64_t best = 0;
  float most = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < n; ++i)
    if (logits[i] > most) most = logits[i], best = i;
  return static_cast<std::int32_t>(best);
}

std::int32_t drawn(const float* logits, std::int64_t n, float temperature, std::uint64_t key) {
  const float inverse = 1.0F / temperature;
  std::int64_t best = 0;
  float most = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < n; ++i) {
    const float scaled = logits[i] * inverse;
    if (!(scaled + kMostGumbelNoise > most)) continue;
    const float sum = scaled + gumbel_noise(sampling_bits(key, static_cast<std::uint32_t>(i)));
    if (sum > most) most = sum, best = i;
  }
  return static_cast<std::int32_t>(best);
}

}  // namespace

std::uint64_t sampling_key(std::uint64_t seed, std::uint64_t request, std::uint64_t step) {
  return Draw{seed, Purpose::kSampling, request, step}.bits();
}

void run_cpu(const Sampling& a) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const float* const logits = static_cast<const float*>(a.logits) + r * (a.stride != 0 ? a.stride : a.vocabulary);
    const float temperature = a.temperature != nullptr ? a.temperature[r] : 0.0F;
    a.token[r] = temperature > 0.0F ? drawn(logits, a.vocabulary, temperature, a.key[r]) : greedy(logits, a.vocabulary);
  }
}

}  // namespace kvlab
