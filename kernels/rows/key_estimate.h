#pragma once

#include <cmath>

#include "kernels/element.h"

// Keys in few bits, decoded by one thread.
namespace kvlab {

// With zero and scale.
constexpr std::int64_t estimate_bytes(std::int32_t head_dim, std::int32_t bits) { return (std::int64_t{head_dim} * bits + 7) / 8 + 4; }

// put(i, zero + scale * code) for the numbers get(i), i in [0, n); zero = min, scale = (max - min) / (2^bits - 1), both fp16. With
// `quarter_points`, for one bit: zero = (3 min + max) / 4, scale = (max - min) / 2.
template <class Get, class Put>
KVLAB_BODY void round_to_levels(std::int64_t n, std::int32_t bits, bool quarter_points, const Get& get, const Put& put) {
  const auto rounded = [](float y) {
    constexpr float kMost = 65504.0F;
    return to_float(from_float<f16>(y < -kMost ? -kMost : y > kMost ? kMost : y));
  };
  float low = get(0), high = low;
  for (std::int64_t i = 1; i < n; ++i) {
    const float y = get(i);
    low = y < low ? y : low, high = high < y ? y : high;
  }
  const auto levels = static_cast<float>((1 << bits) - 1);
  const float zero = rounded(quarter_points ? 0.75F * low + 0.25F * high : low);
  const float scale = rounded(quarter_points ? 0.5F * (high - low) : (high - low) / levels);
  for (std::int64_t i = 0; i < n; ++i) {
    const float code = scale > 0 ? std::nearbyint((get(i) - zero) / scale) : 0.0F;
    put(i, zero + scale * (code < 0.0F ? 0.0F : code > levels ? levels : code));
  }
}

// x [d] after round_to_levels. Twilight, Lin et al. 2025, arXiv:2502.02770.
template <class Vector>
KVLAB_BODY void write_levels(const Vector& key, std::int64_t d, std::int32_t bits, float* x) {
  round_to_levels(
      d, bits, false, [&](std::int64_t c) { return key[c]; }, [&](std::int64_t c, float y) { x[c] = y; });
}

// x [d] after a normalised Hadamard rotation in blocks of the largest power of two that divides d, in e4m3 with one scale, the smallest
// power of two that brings the maximum to <= 448. DeepSeek's lightning indexer (DeepSeek-V3.2-Exp, 2025) without projections.
template <class Vector>
KVLAB_BODY void write_rotated(const Vector& key, std::int64_t d, float* x) {
  const std::int64_t block = d & ~(d - 1);
  for (std::int64_t c = 0; c < d; ++c) x[c] = key[c];
  for (std::int64_t half = 1; half < block; half *= 2)
    for (std::int64_t i = 0; i < d; ++i)
      if ((i & half) == 0) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b, x[i + half] = a - b;
      }
  const float rotation = 1.0F / std::sqrt(static_cast<float>(block));
  float largest = 0.0F;
  for (std::int64_t c = 0; c < d; ++c) {
    x[c] *= rotation;
    largest = std::abs(x[c]) > largest ? std::abs(x[c]) : largest;
  }
  const float scale = largest > 0.0F ? std::exp2(std::ceil(std::log2(largest / 448.0F))) : 1.0F;
  for (std::int64_t c = 0; c < d; ++c) x[c] = scale * to_float(from_float<fp8>(x[c] / scale));
}

}  // namespace kvlab
