#include "kernels/device/cuda/run_row_op.cuh"
#include "kernels/rows/elements.h"
#include "policies/kv/disposal/kernel_state/row_states.h"

namespace kvlab {

namespace {

__device__ float gelu_of(float x) { return 0.5F * x * (1.0F + erff(x * 0.707106781F)); }

// out [columns] = gelu(x [rows] w [rows, columns]).
template <class X>
__device__ void state_layer(const BlockTeam& team, const X& x, std::int64_t rows, const float* w, std::int64_t columns, float* out) {
  team.each(columns, [&](std::int64_t j) {
    float sum = 0;
    for (std::int64_t i = 0; i < rows; ++i) sum += x(i) * w[i * columns + j];
    out[j] = gelu_of(sum);
  });
}

// A block per row. Scratch: the middle layer, then two lines of features.
struct StatesOfRow : RowStates {
  [[nodiscard]] std::int64_t rows() const { return parts.kv.num_rows; }
  [[nodiscard]] std::int64_t room(std::int64_t /*row*/) const { return maps.mid_dim + 2LL * maps.features; }
  [[nodiscard]] OpCall cost() const { return call(*this); }
  void shapes(auto&& visit) {
    const KvRows& kv = parts.kv;
    const std::int64_t n = kv.num_rows, d = kv.head_dim, f = maps.features, m = maps.mid_dim, heads = kv.kv_heads,
                       q_heads = heads * kv.group;
    visit(maps.a1, q_heads * d * m), visit(maps.a2, q_heads * m * f), visit(maps.b1, heads * d * m), visit(maps.b2, heads * m * f);
    visit(maps.c, heads * f * f), visit(maps.s1, heads * f), visit(maps.s2, heads * f);
    visit(queries, kv.num_sequences()), visit(line, n), visit(tokens, n), visit(first, n + 1);
    visit_parts(parts, visit);
  }
  __device__ void operator()(const BlockTeam& team, std::int64_t row) const {
    kind == Kind::kFold ? fold(team, static_cast<std::int32_t>(row)) : read(team, static_cast<std::int32_t>(row));
  }

  __device__ void fold(const BlockTeam& team, std::int32_t row) const {
    const KvRows& kv = parts.kv;
    const std::int64_t d = kv.head_dim, f = maps.features, m = maps.mid_dim, head = row % kv.kv_heads;
    float *const middle = team.room(), *const u = middle + m, *const phi = u + f, *const own = state + line[row] * maps.state_floats(d);
    for (std::int64_t i = parts.dropped_first[row]; i < parts.dropped_first[row + 1]; ++i) {
      const std::int64_t at = kv.slot(row, parts.dropped[i]) * d;
      state_layer(
          team, [&](std::int64_t c) { return element_at(kv.k, at + c, kv.type); }, d, maps.b1 + head * d * m, m, middle);
      state_layer(
          team, [&](std::int64_t c) { return middle[c]; }, m, maps.b2 + head * m * f, f, u);
      team.each(f, [&](std::int64_t j) { u[j] *= fabsf(maps.s1[head * f + j]); });
      team.each(f, [&](std::int64_t j) {
        float mixed = 0;
        for (std::int64_t g = 0; g < f; ++g) mixed += u[g] * maps.c[(head * f + g) * f + j];
        phi[j] = fabsf(u[j] + mixed * maps.s2[head * f + j]);
      });
      team.each(f * d, [&](std::int64_t x) { own[x] += phi[x / d] * element_at(kv.v, at + x % d, kv.type); });
      team.each(f, [&](std::int64_t j) { own[f * d + j] += phi[j]; });
    }
  }

  __device__ void read(const BlockTeam& team, std::int32_t row) const {
    if (tokens[row] == 0) return;
    const KvRows& kv = parts.kv;
    const std::int64_t d = kv.head_dim, f = maps.features, m = maps.mid_dim, group = kv.group, q_heads = kv.kv_heads * group;
    float *const middle = team.room(), *const phi = middle + m;
    const float *const own = state + line[row] * maps.state_floats(d), *const z = own + f * d;
    team.each(f * d, [&](std::int64_t x) { values[row * f * d + x] = z[x / d] > 0 ? own[x] / z[x / d] : 0.0F; });
    const Queries q = queries[kv.sequence(row)];
    float* const weights = log_weight + first[row] * most_queries * group;
    for (std::int64_t at = 0; at < q.count * group; ++at) {
      const std::int64_t query = at / group, head = row % kv.kv_heads * group + at % group;
      const float* const x = q.data + (query * q_heads + head) * d;
      state_layer(
          team, [&](std::int64_t c) { return x[c]; }, d, maps.a1 + head * d * m, m, middle);
      state_layer(
          team, [&](std::int64_t c) { return middle[c]; }, m, maps.a2 + head * m * f, f, phi);
      team.each(f, [&](std::int64_t j) { weights[(query * f + j) * group + at % group] = logf(fabsf(phi[j])) + logf(z[j]); });
    }
  }
};

}  // namespace

void run_cuda(const RowStates& a, CudaContext& cuda) { run_rows_on_device(StatesOfRow{a}, cuda); }

}  // namespace kvlab
