#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "kernels/storage/cast/stored_type.h"
#include "policies/kv/selector/index_keys/index_keys.h"

namespace kvlab {

namespace {

void rotate_by_hadamard(std::vector<float>& x) {
  const std::size_t d = x.size(), block = d & ~(d - 1);
  for (std::size_t half = 1; half < block; half *= 2)
    for (std::size_t i = 0; i < d; ++i)
      if ((i & half) == 0) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b, x[i + half] = a - b;
      }
  const float scale = 1.0F / std::sqrt(static_cast<float>(block));
  for (float& y : x) y *= scale;
}

void index_vector(const float* from, std::int64_t d, std::uint8_t* code) {
  std::vector<float> x(from, from + d);
  rotate_by_hadamard(x);
  float largest = 0.0F;
  for (const float y : x) largest = std::max(largest, std::fabs(y));
  const float scale = largest > 0.0F ? std::exp2(std::ceil(std::log2(largest / 448.0F))) : 1.0F;
  for (std::int64_t c = 0; c < d; ++c)
    code[c] = static_cast<std::uint8_t>(to_stored(StoredType::kFp8E4M3, x[static_cast<std::size_t>(c)] / scale));
  std::memcpy(code + d, &scale, 4);
}

void read_index(const std::uint8_t* code, std::int64_t d, float* x) {
  float scale = 0.0F;
  std::memcpy(&scale, code + d, 4);
  for (std::int64_t c = 0; c < d; ++c) x[c] = scale * from_stored(StoredType::kFp8E4M3, code[c]);
}

}  // namespace

void run_cpu(const IndexKeys& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t i) {
    const auto r = static_cast<std::int32_t>(i);
    for (std::int32_t t = a.from[r]; t < a.kv.len[r]; ++t)
      index_vector(a.kv.key(r, t), a.kv.head_dim, a.code[r] + t * index_key_bytes(a.kv.head_dim));
  });
}

void run_cpu(const IndexScores& a) {
  const std::int64_t d = a.kv.head_dim, group = a.kv.group;
  std::vector<float> key(static_cast<std::size_t>(d)), q(static_cast<std::size_t>(group * d));
  std::vector<std::uint8_t> code(static_cast<std::size_t>(index_key_bytes(d)));
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) {
    const std::int64_t n = a.first[s + 1] - a.first[s];
    std::fill_n(a.out + a.first[s], n, 0.0F);
    for (std::int32_t h = 0; n > 0 && h < a.kv.kv_heads; ++h) {
      const float* const from = a.queries[s].data + ((a.queries[s].count - 1LL) * a.kv.kv_heads + h) * group * d;
      for (std::int64_t j = 0; j < group; ++j) {
        index_vector(from + j * d, d, code.data());
        read_index(code.data(), d, q.data() + j * d);
      }
      for (std::int64_t i = 0; i < n; ++i) {
        read_index(a.code[s * a.kv.kv_heads + h] + i * index_key_bytes(d), d, key.data());
        for (std::int64_t j = 0; j < group; ++j) a.out[a.first[s] + i] += std::max(0.0F, lane_dot(q.data() + j * d, key.data(), d));
      }
    }
  }
}

}  // namespace kvlab
