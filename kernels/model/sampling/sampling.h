#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab {

// One pass over logits [rows, vocabulary] (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax").
struct SamplingShape {
  std::int64_t rows = 0, vocabulary = 0;
  std::int64_t logit_bytes = 2;
};

constexpr std::int64_t bytes(const SamplingShape& s) { return s.rows * (s.vocabulary * s.logit_bytes + 4); }
constexpr std::int64_t flops(const SamplingShape& s) { return 5 * s.rows * s.vocabulary; }

// Greedy, or from softmax(logits / temperature) by the Gumbel-max trick (Gumbel 1954; Maddison, Tarlow and Minka 2014, "A* sampling"): the
// largest logit / temperature + noise(key, token). CPU and GPU agree unless the two largest sums differ by a few roundings. Ties: lowest
// token. NaN is never picked; only NaN and -inf: token 0.
struct Sampling {
  const void* logits = nullptr;        // row r begins at r * stride
  const float* temperature = nullptr;  // [rows]; 0: greedy. Null: all greedy
  const std::uint64_t* key = nullptr;  // [rows] sampling_key(...); not read if greedy
  std::int32_t* token = nullptr;       // [rows] out
  std::int64_t rows = 0, vocabulary = 0;
  std::int64_t stride = 0;               // 0: vocabulary
  ElementType type = ElementType::kF32;  // on the CPU kF32
};

constexpr SamplingShape shape(const Sampling& a) { return {a.rows, a.vocabulary, element_bytes(a.type)}; }
void run_cpu(const Sampling& a);
void run_cuda(const Sampling& a, CudaContext& cuda);

std::uint64_t sampling_key(std::uint64_t seed, std::uint64_t request, std::uint64_t step);

// MurmurHash3's finalizer (Appleby 2011), with half of the key before each product.
KVLAB_BOTH constexpr std::uint32_t sampling_bits(std::uint64_t key, std::uint32_t token) {
  std::uint32_t x = token ^ static_cast<std::uint32_t>(key);
  x ^= x >> 16;
  x *= 0x85ebca6bU;
  x ^= static_cast<std::uint32_t>(key >> 32);
  x ^= x >> 13;
  x *= 0xc2b2ae35U;
  return x ^ x >> 16;
}

// -log(-log(1 - w)), w = (bits + 1/2) / 2^32; precise near w = 0, the large noise. Range -2.9 to 22.9.
KVLAB_BOTH inline float gumbel_noise(std::uint32_t bits) {
  const float w = (static_cast<float>(bits) + 0.5F) * 0x1p-32F;
  return -logf(-log1pf(-(w < 0x1.fffffep-1F ? w : 0x1.fffffep-1F)));
}
constexpr float kMostGumbelNoise = 22.9F;

}  // namespace kvlab
