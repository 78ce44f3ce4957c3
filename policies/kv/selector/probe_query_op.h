#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

// The probe query of ActQKV (Xiao et al. 2025, arXiv:2502.13542). Known from the abstract; the formulas are our definition.
namespace kvlab {

// probe = sum_i w_i q_i with w = softmax_i(|q_i - mean q| / deviation), deviation^2 = mean_i |q_i - mean q|^2. The heads of a layer make
// one vector q_i.
struct ProbeQuery {
  std::int32_t num_sequences = 0, width = 0;
  const std::int32_t* held = nullptr;  // [num_sequences] queries in the ring
  const float* const* ring = nullptr;  // [num_sequences] -> [held, width]
  float* probe = nullptr;              // [num_sequences, width] out

  // The ring is read once, 6 FLOPs per value.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "probe_query", .rows = num_sequences, .outputs = num_sequences};
    for (std::int32_t s = 0; s < num_sequences; ++s) {
      const std::int64_t values = static_cast<std::int64_t>(held[s]) * width;
      c.tokens += held[s];
      c.bytes += 2 * values + 4LL * width;
      c.flops += 6 * values;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_sequences; }
  // The mean; a distance and a weight of each query: doubles.
  [[nodiscard]] std::int64_t room(std::int64_t s) const { return 2LL * (width + 2 * held[s]); }
  void shapes(auto&& visit) { visit(held, num_sequences), visit(ring, num_sequences); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t n = held[s];
    double *const mean = team.doubles(), *const distance = mean + width, *const weight = distance + n;
    const auto q = [&](std::int64_t i, std::int64_t c) { return static_cast<double>(ring[s][i * width + c]); };
    team.each(width, [&](std::int64_t c) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += q(i, c) / static_cast<double>(n);
      mean[c] = sum;
    });
    for (std::int64_t i = 0; i < n; ++i) {
      const double square = team.template sum<double>(width, [&](std::int64_t c) { return (q(i, c) - mean[c]) * (q(i, c) - mean[c]); });
      team.once([&] { distance[i] = square; });
    }
    const double deviation = team.template sum<double>(n, [&](std::int64_t i) { return distance[i] / static_cast<double>(n); });
    team.each(n, [&](std::int64_t i) { weight[i] = std::exp(deviation > 0 ? std::sqrt(distance[i] / deviation) : 0.0); });
    const double sum = team.template sum<double>(n, [&](std::int64_t i) { return weight[i]; });
    team.each(width, [&](std::int64_t c) {
      double x = 0;
      for (std::int64_t i = 0; i < n; ++i) x += weight[i] / sum * q(i, c);
      probe[s * width + c] = static_cast<float>(x);
    });
  }
};
KVLAB_ROW_OP(ProbeQuery)

}  // namespace kvlab
