#pragma once

#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Trained maps of a query and a key to `features` numbers >= 0, whose product approximates exp(q k / sqrt(d)); g = GELU:
//   phi_q(q) = |g(g(q A1) A2)|,   u = |s1| * g(g(k B1) B2),   phi_k(k) = |u + (u C) * s2|
// LESS, Dong et al. 2024, arXiv:2402.09398. phi_q is a query head's, phi_k a KV head's. In CPU memory; null on shapes.
struct StateMaps {
  std::int32_t mid_dim = 0, features = 0;
  const float *a1 = nullptr, *a2 = nullptr;  // [q_heads, head_dim, mid_dim], [q_heads, mid_dim, features]
  const float *b1 = nullptr, *b2 = nullptr;  // [kv_heads, head_dim, mid_dim], [kv_heads, mid_dim, features]
  const float* c = nullptr;                  // [kv_heads, features, features]
  const float *s1 = nullptr, *s2 = nullptr;  // [kv_heads, features]
  // Floats of a row's state: S [features, head_dim], then z [features].
  [[nodiscard]] KVLAB_BOTH std::int64_t state_floats(std::int64_t head_dim) const { return features * (head_dim + 1); }
  [[nodiscard]] std::int64_t products(std::int64_t head_dim) const { return mid_dim * (head_dim + features); }  // of two layers
  void shapes(auto&& visit, std::int64_t heads, std::int64_t q_heads, std::int64_t d) {
    const std::int64_t f = features, m = mid_dim;
    visit(a1, q_heads * d * m), visit(a2, q_heads * m * f), visit(b1, heads * d * m), visit(b2, heads * m * f);
    visit(c, heads * f * f), visit(s1, heads * f), visit(s2, heads * f);
  }
};

// The states of rows. Maps are copied to a device at each call.
//   kFold  adds the tokens that left a row, one after another: S += phi_k(k) v^T, z += phi_k(k).
//   kRead  writes a state as tokens for Attend: token f has a key of zeros, the value S_f / z_f and, of query q, the weight phi_q(q)_f z_f.
struct RowStates {
  enum class Kind : std::uint8_t { kFold, kRead };
  PartedRows parts;  // of kRead only kv
  StateMaps maps;
  const std::int32_t* line = nullptr;  // [num_rows] row r's state is line line[r]
  float* state = nullptr;              // [*, maps.state_floats(head_dim)] of kFold in and out
  Kind kind = Kind::kFold;
  // Of kRead.
  const Queries* queries = nullptr;      // [num_sequences]
  const std::int32_t* tokens = nullptr;  // [num_rows] maps.features, or 0: the row's state is empty and not read
  const std::int64_t* first = nullptr;   // [num_rows + 1] prefix sums of tokens
  std::int32_t most_queries = 0;         // of a sequence
  float* log_weight = nullptr;           // [first.back(), most_queries, group] out, as Segment::weighed_queries has it
  float* values = nullptr;               // [num_rows * features, head_dim] out

  // kFold reads dropped keys and values, reads and writes states; kRead reads queries and states, writes weights and values. Maps (2 bytes
  // a number) are read once per row.
  [[nodiscard]] OpCall cost() const { return kind == Kind::kFold ? cost_to_fold() : cost_to_read(); }
  [[nodiscard]] std::int64_t rows() const { return parts.kv.num_rows; }
  // The middle layer, then two lines of features.
  [[nodiscard]] std::int64_t room(std::int64_t /*row*/) const { return maps.mid_dim + 2LL * maps.features; }
  void shapes(auto&& visit) {
    const KvRows& kv = parts.kv;
    maps.shapes(visit, kv.kv_heads, std::int64_t{kv.kv_heads} * kv.group, kv.head_dim);
    visit(queries, kv.num_sequences()), visit(line, rows()), visit(tokens, rows()), visit(first, rows() + 1);
    visit_parts(parts, visit);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    kind == Kind::kFold ? fold(team, static_cast<std::int32_t>(row)) : read(team, static_cast<std::int32_t>(row));
  }

 private:
  [[nodiscard]] OpCall cost_to_fold() const {
    const KvRows& kv = parts.kv;
    const std::int64_t dropped = parts.total_dropped(), d = kv.head_dim, f = maps.features;
    std::int64_t losing = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) losing += parts.num_dropped(r) > 0 ? 1 : 0;
    const std::int64_t products = maps.products(d) + f * f;
    return {.op = "fold_dropped",
            .rows = kv.num_rows,
            .tokens = dropped,
            .outputs = losing,
            .bytes = dropped * (2 * d * kv.kv_bytes + 4) + losing * (8 * maps.state_floats(d) + 2 * (products + 2 * f)),
            .flops = 2 * dropped * (products + f * d)};
  }
  [[nodiscard]] OpCall cost_to_read() const {
    const KvRows& kv = parts.kv;
    const std::int64_t d = kv.head_dim, products = maps.products(d), group = kv.group;
    OpCall c{.op = "read_state", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t f = tokens[r], lines = f > 0 ? group * queries[kv.sequence(r)].count : 0;
      c.tokens += f;
      c.outputs += f;
      c.bytes += lines * (2 * d + 4 * f) + (f > 0 ? 2 * group * products + 4 * maps.state_floats(d) + 4 * f * d : 0);
      c.flops += 2 * lines * products + f * d;
    }
    return c;
  }

  // out [columns] = gelu(x [rows] w [rows, columns]).
  template <class Team, class X>
  KVLAB_BODY static void layer(const Team& team, const X& x, std::int64_t rows, const float* w, std::int64_t columns, float* out) {
    team.each(columns, [&](std::int64_t j) {
      float sum = 0;
      for (std::int64_t i = 0; i < rows; ++i) sum += x(i) * w[i * columns + j];
      out[j] = gelu(sum);
    });
  }
  // out [features] = both layers of x [head_dim], with a head's matrices.
  template <class Team, class X>
  KVLAB_BODY void two_layers(const Team& team, const X& x, const float* w1, const float* w2, float* out) const {
    float* const middle = team.room();
    layer(team, x, parts.kv.head_dim, w1, maps.mid_dim, middle);
    layer(
        team, [&](std::int64_t i) { return middle[i]; }, maps.mid_dim, w2, maps.features, out);
  }

  template <class Team>
  KVLAB_BODY void fold(const Team& team, std::int32_t row) const {
    const KvRows& kv = parts.kv;
    const std::int64_t d = kv.head_dim, f = maps.features, m = maps.mid_dim, head = row % kv.kv_heads;
    float *const u = team.room() + m, *const phi = u + f, *const own = state + line[row] * maps.state_floats(d);
    for (std::int64_t i = parts.dropped_first[row]; i < parts.dropped_first[row + 1]; ++i) {
      const std::int64_t at = kv.slot(row, parts.dropped[i]) * d;
      two_layers(
          team, [&](std::int64_t c) { return element_at(kv.k, at + c, kv.type); }, maps.b1 + head * d * m, maps.b2 + head * m * f, u);
      team.each(f, [&](std::int64_t j) { u[j] *= std::fabs(maps.s1[head * f + j]); });
      team.each(f, [&](std::int64_t j) {
        float mixed = 0;
        for (std::int64_t g = 0; g < f; ++g) mixed += u[g] * maps.c[(head * f + g) * f + j];
        phi[j] = std::fabs(u[j] + mixed * maps.s2[head * f + j]);
      });
      team.each(f * d, [&](std::int64_t x) { own[x] += phi[x / d] * element_at(kv.v, at + x % d, kv.type); });
      team.each(f, [&](std::int64_t j) { own[f * d + j] += phi[j]; });
    }
  }

  template <class Team>
  KVLAB_BODY void read(const Team& team, std::int32_t row) const {
    if (tokens[row] == 0) return;
    const KvRows& kv = parts.kv;
    const std::int64_t d = kv.head_dim, f = maps.features, m = maps.mid_dim, group = kv.group, q_heads = kv.kv_heads * group;
    float* const phi = team.room() + m;
    const float *const own = state + line[row] * maps.state_floats(d), *const z = own + f * d;
    team.each(f * d, [&](std::int64_t x) { values[row * f * d + x] = z[x / d] > 0 ? own[x] / z[x / d] : 0.0F; });
    const Queries q = queries[kv.sequence(row)];
    float* const weights = log_weight + first[row] * most_queries * group;
    for (std::int64_t at = 0; at < q.count * group; ++at) {
      const std::int64_t query = at / group, head = row % kv.kv_heads * group + at % group;
      const float* const x = q.data + (query * q_heads + head) * d;
      two_layers(
          team, [&](std::int64_t c) { return x[c]; }, maps.a1 + head * d * m, maps.a2 + head * m * f, phi);
      team.each(f, [&](std::int64_t j) { weights[(query * f + j) * group + at % group] = std::log(std::fabs(phi[j])) + std::log(z[j]); });
    }
  }
};
KVLAB_ROW_OP(RowStates)

}  // namespace kvlab
