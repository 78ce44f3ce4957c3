#include "policies/kv/disposal/kernel_state/row_states.h"

namespace kvlab {

namespace {

std::int64_t products_of_two_layers(const StateMaps& m, std::int64_t head_dim) { return m.mid_dim * (head_dim + m.features); }

OpCall cost_to_fold(const RowStates& a) {
  const KvRows& kv = a.parts.kv;
  const std::int64_t dropped = a.parts.total_dropped(), d = kv.head_dim, f = a.maps.features;
  std::int64_t rows = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) rows += a.parts.num_dropped(r) > 0 ? 1 : 0;
  const std::int64_t products = products_of_two_layers(a.maps, d) + f * f;
  return {.op = "fold_dropped",
          .rows = kv.num_rows,
          .tokens = dropped,
          .outputs = rows,
          .bytes = dropped * (2 * d * kv.kv_bytes + 4) + rows * (8 * a.maps.state_floats(d) + 2 * (products + 2 * f)),
          .flops = 2 * dropped * (products + f * d)};
}

OpCall cost_to_read(const RowStates& a) {
  const KvRows& kv = a.parts.kv;
  const std::int64_t d = kv.head_dim, products = products_of_two_layers(a.maps, d), group = kv.group;
  OpCall c{.op = "read_state", .rows = kv.num_rows};
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const std::int64_t f = a.tokens[r], lines = f > 0 ? group * a.queries[kv.sequence(r)].count : 0;
    c.tokens += f;
    c.outputs += f;
    c.bytes += lines * (2 * d + 4 * f) + (f > 0 ? 2 * group * products + 4 * a.maps.state_floats(d) + 4 * f * d : 0);
    c.flops += 2 * lines * products + f * d;
  }
  return c;
}

}  // namespace

OpCall call(const RowStates& a) { return a.kind == RowStates::Kind::kFold ? cost_to_fold(a) : cost_to_read(a); }
KVLAB_WITHOUT_CUDA(RowStates)

}  // namespace kvlab
