#pragma once

#include "kernels/rows/row_op.h"

namespace kvlab {

// torch.rand on a CPU for [kv_heads, n] float32 numbers: MT19937 (Matsumoto and Nishimura 1998) per sequence, the low 24 bits of each
// number. A thread takes one sequence.
struct TorchUniform {
  KvRows kv;
  std::uint32_t seed = 0;
  float* scores = nullptr;  // [kv.total()] out

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    return {.op = "torch_uniform", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = 4 * n, .flops = 8 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_sequences(); }
  void shapes(auto&& visit) { visit(kv); }
  [[nodiscard]] std::int64_t room(std::int64_t /*sequence*/) const { return kWords; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t sequence) const {
    auto* const state = reinterpret_cast<std::uint32_t*>(team.room());
    team.once([&] {
      state[0] = seed;
      for (std::uint32_t i = 1; i < kWords; ++i) state[i] = 1812433253U * (state[i - 1] ^ state[i - 1] >> 30) + i;
      const std::int64_t begin = kv.first[sequence * kv.kv_heads], n = kv.first[(sequence + 1) * kv.kv_heads] - begin;
      for (std::int64_t i = 0; i < n; ++i) {
        if (i % kWords == 0) next_words(state);
        scores[begin + i] = static_cast<float>(tempered(state[i % kWords]) & 0xFFFFFFU) * 0x1p-24F;
      }
    });
  }

 private:
  static constexpr std::int64_t kWords = 624;
  static KVLAB_BODY void next_words(std::uint32_t* state) {
    for (std::int64_t i = 0; i < kWords; ++i) {
      const std::uint32_t x = (state[i] & 0x80000000U) | (state[(i + 1) % kWords] & 0x7FFFFFFFU);
      state[i] = state[(i + 397) % kWords] ^ x >> 1 ^ ((x & 1U) != 0 ? 0x9908B0DFU : 0U);
    }
  }
  static KVLAB_BODY std::uint32_t tempered(std::uint32_t x) {
    x ^= x >> 11;
    x ^= x << 7 & 0x9D2C5680U;
    x ^= x << 15 & 0xEFC60000U;
    return x ^ x >> 18;
  }
};
KVLAB_ROW_OP(TorchUniform)

}  // namespace kvlab
