#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Per KV head the top right-singular vector u of its group's queries, stacked, by power iteration on Q^T Q from their mean, with the sign
// that makes the mean of q.u positive. No queries, or all zero: u = 0. Q-Filters, Godey et al. 2025.
struct TopDirection {
  const Queries* queries = nullptr;  // [num_sequences]
  std::int32_t num_sequences = 0, kv_heads = 1, group = 1, head_dim = 0;
  std::int32_t iterations = 32;
  float* out = nullptr;  // [num_sequences * kv_heads, head_dim]

  // Q^T Q once (queries of 2 bytes per element), then d^2 products per iteration.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "top_direction", .rows = rows()};
    const std::int64_t d = head_dim;
    for (std::int32_t s = 0; s < num_sequences; ++s) {
      const std::int64_t vectors = static_cast<std::int64_t>(queries[s].count) * kv_heads * group;
      c.tokens += queries[s].count;
      c.outputs += kv_heads;
      c.bytes += vectors * d * 2 + kv_heads * d * 4;
      c.flops += 2 * vectors * d * d + 2 * kv_heads * iterations * d * d;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return std::int64_t{num_sequences} * kv_heads; }
  void shapes(auto&& visit) { visit(queries, num_sequences); }
  static constexpr bool kInParallel = true;
  // Doubles: Q^T Q, the sum of the queries, u, and u of norm 1.
  [[nodiscard]] std::int64_t room(std::int64_t /*row*/) const { return 2LL * head_dim * (head_dim + 3); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    constexpr std::int64_t kWide = Team::kOnDevice ? 1 : 16;  // channels at a time
    const std::int64_t d = head_dim, pieces = (d + kWide - 1) / kWide;
    double *const gram = team.doubles(), *const total = gram + d * d, *const u = total + d, *const unit = u + d;
    team.each((d + 1) * pieces, [&](std::int64_t at) { add_products<kWide>(row, at / pieces, at % pieces * kWide, gram); });
    team.each(d, [&](std::int64_t c) { u[c] = total[c]; });
    const auto length = [&] { return std::sqrt(team.template sum<double>(d, [&](std::int64_t c) { return u[c] * u[c]; })); };
    double norm = length();
    for (std::int32_t i = 0; i < iterations && norm > 0; ++i) {
      team.each(d, [&](std::int64_t c) { unit[c] = u[c] / norm; });
      team.each(pieces, [&](std::int64_t at) { multiply<kWide>(gram, unit, at * kWide, u); });
      norm = length();
    }
    const double along = team.template sum<double>(d, [&](std::int64_t c) { return u[c] * total[c]; });
    const double divisor = norm > 0 ? (along < 0 ? -norm : norm) : 1;
    team.each(d, [&](std::int64_t c) { out[row * d + c] = static_cast<float>(u[c] / divisor); });
  }

 private:
  // Channels [from, from + Wide) of a line of Q^T Q, or of the sum after the last line.
  template <std::int64_t Wide>
  KVLAB_BODY void add_products(std::int64_t row, std::int64_t line, std::int64_t from, double* gram) const {
    const std::int64_t d = head_dim;
    const Queries q = queries[row / kv_heads];
    double sum[Wide] = {};
    for (std::int64_t t = 0; t < q.count; ++t)
      for (std::int64_t g = 0; g < group; ++g) {
        const float* const x = q.data + ((t * kv_heads + row % kv_heads) * group + g) * d;
        add<Wide>(sum, line == d ? 1.0 : static_cast<double>(x[line]), x + from, d - from);
      }
    for (std::int64_t c = 0; c < Wide && from + c < d; ++c) gram[line * d + from + c] = sum[c];
  }
  // Channels [from, from + Wide) of the symmetric matrix times x.
  template <std::int64_t Wide>
  KVLAB_BODY void multiply(const double* matrix, const double* x, std::int64_t from, double* product) const {
    const std::int64_t d = head_dim;
    double sum[Wide] = {};
    for (std::int64_t k = 0; k < d; ++k) add<Wide>(sum, x[k], matrix + k * d + from, d - from);
    for (std::int64_t c = 0; c < Wide && from + c < d; ++c) product[from + c] = sum[c];
  }
  // Of the n channels left.
  template <std::int64_t Wide, class T>
  static KVLAB_BODY void add(double (&sum)[Wide], double factor, const T* x, std::int64_t n) {
    if (n >= Wide) {
      for (std::int64_t c = 0; c < Wide; ++c) sum[c] += factor * static_cast<double>(x[c]);
    } else {
      for (std::int64_t c = 0; c < n; ++c) sum[c] += factor * static_cast<double>(x[c]);
    }
  }
};
KVLAB_ROW_OP(TopDirection)

}  // namespace kvlab
