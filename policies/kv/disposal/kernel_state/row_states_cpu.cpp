#include <Eigen/Core>
#include <cmath>

#include "kernels/gelu.h"
#include "policies/kv/disposal/kernel_state/row_states.h"

namespace kvlab {

namespace {

using StateRow = Eigen::RowVectorXf;
using StateRowMap = Eigen::Map<const StateRow>;
using StateMatrixMap = Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

// [heads, head_dim, mid_dim] and [heads, mid_dim, features].
StateRow state_layers(const StateMaps& m, const float* w1, const float* w2, std::int64_t head, const float* x, std::int64_t d) {
  const StateMatrixMap first(w1 + head * d * m.mid_dim, d, m.mid_dim), second(w2 + head * m.mid_dim * m.features, m.mid_dim, m.features);
  const StateRow middle = StateRowMap(x, d).lazyProduct(first).unaryExpr(&gelu);
  return middle.lazyProduct(second).unaryExpr(&gelu);
}

StateRow features_of_key(const StateMaps& m, std::int64_t head, const float* k, std::int64_t d) {
  const std::int64_t f = m.features;
  const StateRow u = StateRowMap(m.s1 + head * f, f).cwiseAbs().cwiseProduct(state_layers(m, m.b1, m.b2, head, k, d));
  const StateRow mixed = u.lazyProduct(StateMatrixMap(m.c + head * f * f, f, f));
  return (u + mixed.cwiseProduct(StateRowMap(m.s2 + head * f, f))).cwiseAbs();
}

// Token by token: a state must not depend on how its tokens were cut together.
void fold(const RowStates& a) {
  const KvRows& kv = a.parts.kv;
  const std::int64_t d = kv.head_dim, f = a.maps.features;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    float* const state = a.state + a.line[r] * a.maps.state_floats(d);
    for (std::int64_t i = a.parts.dropped_first[r]; i < a.parts.dropped_first[r + 1]; ++i) {
      const std::int32_t token = a.parts.dropped[i];
      const StateRow phi = features_of_key(a.maps, r % kv.kv_heads, kv.key(r, token), d);
      const float* const v = kv.value(r, token);
      for (std::int64_t j = 0; j < f; ++j) {
        for (std::int64_t c = 0; c < d; ++c) state[j * d + c] += phi[j] * v[c];
        state[f * d + j] += phi[j];
      }
    }
  }
}

void read(const RowStates& a) {
  const KvRows& kv = a.parts.kv;
  const std::int64_t d = kv.head_dim, f = a.maps.features, group = kv.group, q_heads = kv.kv_heads * group;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    if (a.tokens[r] == 0) continue;
    const float* const state = a.state + a.line[r] * a.maps.state_floats(d);
    const float* const z = state + f * d;
    float* const values = a.values + r * f * d;
    for (std::int64_t j = 0; j < f; ++j)
      for (std::int64_t c = 0; c < d; ++c) values[j * d + c] = z[j] > 0 ? state[j * d + c] / z[j] : 0.0F;
    const Queries& q = a.queries[kv.sequence(r)];
    float* const log_weight = a.log_weight + a.first[r] * a.most_queries * group;
    for (std::int64_t line = 0; line < q.count * group; ++line) {
      const std::int64_t query = line / group, head = r % kv.kv_heads * group + line % group;
      const StateRow phi = state_layers(a.maps, a.maps.a1, a.maps.a2, head, q.data + (query * q_heads + head) * d, d).cwiseAbs();
      for (std::int64_t j = 0; j < f; ++j) log_weight[(query * f + j) * group + line % group] = std::log(phi[j]) + std::log(z[j]);
    }
  }
}

}  // namespace

void run_cpu(const RowStates& a) { a.kind == RowStates::Kind::kFold ? fold(a) : read(a); }

}  // namespace kvlab
