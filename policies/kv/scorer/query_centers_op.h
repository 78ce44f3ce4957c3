#pragma once

#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Adds up queries before RoPE, per query head: the sum, and for each complex channel pair (f, f + head_dim / 2) the sum of its sizes.
// Queries from position 0 on start at 0. TriAttention, Mao et al. 2026.
struct QueryCenters {
  const Queries* queries = nullptr;  // [num_sequences] before RoPE
  std::int32_t num_sequences = 0, q_heads = 0, head_dim = 0;
  float* const* sum = nullptr;   // [num_sequences] -> [q_heads, head_dim] in and out
  float* const* size = nullptr;  // [num_sequences] -> [q_heads, head_dim / 2] in and out

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "query_centers"};
    const std::int64_t d = head_dim;
    for (std::int32_t s = 0; s < num_sequences; ++s) {
      const std::int64_t n = queries[s].count;
      if (n == 0) continue;
      c.rows += 1;
      c.tokens += n;
      c.outputs += q_heads;
      c.bytes += q_heads * (2 * n * d + 8 * (d + d / 2));
      c.flops += q_heads * n * (d / 2) * 7;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_sequences; }
  void shapes(auto&& visit) { visit(queries, num_sequences), visit(sum, num_sequences), visit(size, num_sequences); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t /*sequence*/) const { return std::int64_t{q_heads} * (head_dim + head_dim / 2); }
  KVLAB_BODY void operator()(std::int64_t s, std::int64_t i) const {
    const std::int64_t width = std::int64_t{q_heads} * head_dim, half = head_dim / 2;
    const bool is_pair = i >= width;
    const std::int64_t pair = i - width, at = is_pair ? pair / half * head_dim + pair % half : i;
    const Queries& q = queries[s];
    double added = 0;
    for (std::int64_t t = 0; t < q.count; ++t) {
      const double x = q.data[t * width + at];
      added += is_pair ? std::hypot(x, static_cast<double>(q.data[t * width + at + half])) : x;
    }
    float& to = is_pair ? size[s][pair] : sum[s][i];
    to = (q.count > 0 && q.first_position == 0 ? 0.0F : to) + static_cast<float>(added);
  }
};
KVLAB_EACH_OP(QueryCenters)

// Expected products of keys with later queries. With complex pairs of channels f, k a cached key (after RoPE), m the mean query and s the
// mean size:
//   score(k) = sum over f of Re(conj(k_f) m_f w_f) + (s_f - |m_f|) |k_f|,   w_f = mean over j of exp(i omega_f (end - 1 + 2^j))
// for j in [0, num_offsets): TriAttention's series (Mao et al. 2026), averaged over offsets before the sum. A query head's scores are then
// standardized (divisor n, deviation at least 1e-6) over the row's tokens. out[i] = the maximum over the group's query heads.
struct CenterScores {
  KvRows kv;
  const float* const* mean = nullptr;   // [num_sequences] -> [kv_heads * group, head_dim], times `count`
  const float* const* size = nullptr;   // [num_sequences] -> [kv_heads * group, head_dim / 2], times `count`
  const std::int32_t* count = nullptr;  // [num_sequences] queries added up; at least 1
  const float* frequencies = nullptr;   // [num_sequences, head_dim / 2] radians per position; null: no RoPE, w = 1
  const std::int32_t* end = nullptr;    // [num_sequences] one past the newest position
  std::int32_t num_offsets = 17;
  float* out = nullptr;  // [kv.total()]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total(), d = kv.head_dim, group = kv.group;
    return {.op = "center_scores",
            .rows = kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = n * d * kv.kv_bytes + 4 * kv.num_rows * group * (d + d / 2) + 4 * n,
            .flops = n * (group * (2 * d + d + 6) + 2 * d)};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) {
    const std::int64_t n = kv.num_sequences();
    visit(kv), visit(mean, n), visit(size, n), visit(count, n), visit(frequencies, n * (kv.head_dim / 2)), visit(end, n);
  }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return 2 * (kv.len[row] + kv.head_dim + kv.head_dim / 2); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = kv.len[row], half = kv.head_dim / 2;
    double *const z = team.doubles(), *const query = z + n, *const spread = query + 2 * half;
    for (std::int32_t g = 0; g < kv.group && n > 0; ++g) {
      team.each(half, [&](std::int64_t f) { turn_mean(row, g, f, query, spread); });
      team.each(n, [&](std::int64_t i) { z[i] = product(query, spread, key_of(team, kv, row, i)); });
      const double middle = team.template sum<double>(n, [&](std::int64_t i) { return z[i] / static_cast<double>(n); });
      const double squares = team.template sum<double>(n, [&](std::int64_t i) { return (z[i] - middle) * (z[i] - middle); });
      const double found = std::sqrt(squares / static_cast<double>(n)), deviation = found < 1e-6 ? 1e-6 : found;
      team.each(n, [&](std::int64_t i) {
        const auto x = static_cast<float>((z[i] - middle) / deviation);
        float& to = out[kv.first[row] + i];
        to = g == 0 || to < x ? x : to;
      });
    }
  }

 private:
  KVLAB_BODY void turn_mean(std::int64_t row, std::int32_t g, std::int64_t f, double* query, double* spread) const {
    const std::int64_t s = row / kv.kv_heads, half = kv.head_dim / 2, head = row % kv.kv_heads * kv.group + g;
    const double scale = 1.0 / count[s];
    const double x = scale * double{mean[s][head * kv.head_dim + f]}, y = scale * double{mean[s][head * kv.head_dim + f + half]};
    double real = frequencies == nullptr ? 1 : 0, imaginary = 0;
    for (std::int32_t j = 0; frequencies != nullptr && j < num_offsets; ++j) {
      const double angle = (end[s] - 1 + static_cast<double>(std::int64_t{1} << j)) * double{frequencies[s * half + f]};
      real += 1.0 / num_offsets * std::cos(angle), imaginary += 1.0 / num_offsets * std::sin(angle);
    }
    query[f] = x * real - y * imaginary, query[f + half] = x * imaginary + y * real;
    spread[f] = scale * double{size[s][head * half + f]} - std::hypot(x, y);
  }
  template <class Key>
  [[nodiscard]] KVLAB_BODY double product(const double* query, const double* spread, const Key& key) const {
    const std::int64_t half = kv.head_dim / 2;
    double sum = 0;
    for (std::int64_t f = 0; f < half; ++f) {
      const double x = key[f], y = key[f + half];
      sum += query[f] * x + query[f + half] * y + spread[f] * std::sqrt(x * x + y * y);
    }
    return sum;
  }
};
KVLAB_ROW_OP(CenterScores)

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
