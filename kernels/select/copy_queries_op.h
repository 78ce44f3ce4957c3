#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Copies a sequence's queries, all heads.
//   kRing, kHalfRing  the last ring_tokens, position p as element p % ring_tokens; kHalfRing is priced at 2 bytes per value
//   kTurned           all, rotated as if at `position`: RoPE turns channels (c, c + d/2) by position * frequency. A2ATS, He et al. 2025,
//     arXiv:2502.12665, section 3.1
struct CopyQueries {
  enum class Kind : std::uint8_t { kRing, kHalfRing, kTurned };
  std::int32_t num_sequences = 0, num_heads = 0, head_dim = 0;
  const Queries* queries = nullptr;  // [num_sequences]
  float* const* out = nullptr;       // [num_sequences] -> [ring_tokens, num_heads, head_dim], or of kTurned [count, num_heads, head_dim]
  Kind kind = Kind::kRing;
  std::int32_t ring_tokens = 0;
  // For kTurned.
  std::int32_t position = 0;
  const float* frequencies = nullptr;  // [num_sequences, head_dim / 2] radians per position, CPU memory; null: no RoPE

  [[nodiscard]] OpCall cost() const {
    const bool turns = kind == Kind::kTurned, ring = kind == Kind::kRing;
    OpCall c{.op = turns ? "turn_queries" : ring ? "keep_queries" : "query_ring", .rows = num_sequences};
    for (std::int32_t s = 0; s < num_sequences; ++s) c.outputs += copied(s);
    const std::int64_t values = c.outputs * num_heads * head_dim;
    c.bytes = (ring ? 8 : 4) * values, c.flops = turns ? 3 * values : 0;
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_sequences; }
  void shapes(auto&& visit) {
    const std::int64_t n = num_sequences;
    visit(frequencies, n * (head_dim / 2)), visit(queries, n), visit(out, n);
  }

  // Pairs of channels; without RoPE single ones.
  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t s) const { return copied(s) * num_heads * width(); }
  KVLAB_BODY void operator()(std::int64_t s, std::int64_t i) const {
    const Queries& q = queries[s];
    const std::int64_t half = head_dim / 2, c = i % width(), head = i / width() % num_heads;
    const std::int64_t t = q.count - copied(s) + i / width() / num_heads,
                       to = kind == Kind::kTurned ? t : (q.first_position + t) % ring_tokens;
    const float* const x = q.data + (t * num_heads + head) * head_dim + c;
    float* const copy = out[s] + (to * num_heads + head) * head_dim + c;
    if (frequencies == nullptr) {
      *copy = *x;
      return;
    }
    const double angle = static_cast<double>(position - (q.first_position + t)) * double{frequencies[s * half + c]};
    const auto cosine = static_cast<float>(std::cos(angle)), sine = static_cast<float>(std::sin(angle));
    copy[0] = x[0] * cosine - x[half] * sine;
    copy[half] = x[half] * cosine + x[0] * sine;
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t width() const { return frequencies == nullptr ? head_dim : head_dim / 2; }
  [[nodiscard]] KVLAB_BOTH std::int64_t copied(std::int64_t s) const {
    return kind == Kind::kTurned || queries[s].count < ring_tokens ? queries[s].count : ring_tokens;
  }
};
KVLAB_EACH_OP(CopyQueries)

}  // namespace kvlab
