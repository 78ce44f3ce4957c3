#include "kernels/storage/low_rank/low_rank.h"

#include "base/error.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

std::vector<LowRankShape> low_rank_shapes(const LowRankFactor& a) {
  std::vector<LowRankShape> shapes;
  LowRankShape s;
  const std::int32_t heads = a.joint_heads ? a.tokens.kv.kv_heads : 1;
  s.width = std::int64_t{heads} * a.tokens.kv.head_dim;
  for (; s.row < a.tokens.kv.num_rows; s.row += heads) {
    s.entries = a.tokens.entries(s.row);
    if (s.entries == 0) continue;
    shapes.push_back(s);
    s.left += std::int64_t{s.entries} * a.rank, s.right += s.width * a.rank;
  }
  return shapes;
}

void check_heads(const LowRankFactor& a) {
  for (std::int32_t r = 0; a.joint_heads && r < a.tokens.kv.num_rows; ++r)
    if (a.tokens.entries(r) != a.tokens.entries(r / a.tokens.kv.kv_heads * a.tokens.kv.kv_heads))
      throw InternalError("low_rank_factor: lists of a sequence's KV heads differ in length");
}

std::int64_t left_numbers(const LowRankFactor& a) {
  std::int64_t n = 0;
  for (const LowRankShape& s : low_rank_shapes(a)) n += std::int64_t{s.entries} * a.rank;
  return n;
}
std::int64_t right_numbers(const LowRankFactor& a) {
  std::int64_t n = 0;
  for (const LowRankShape& s : low_rank_shapes(a)) n += s.width * a.rank;
  return n;
}

namespace {

OpCall cost_to_unpack(const LowRankFactor& a) {
  const std::int64_t n = a.tokens.total(), exact = a.num_exact(), d = a.tokens.kv.head_dim;
  OpCall c{.op = "low_rank_rebuild", .rows = a.tokens.kv.num_rows, .tokens = n, .outputs = n - exact};
  c.bytes = 2 * (left_numbers(a) + right_numbers(a)) + (n - exact) * d * a.tokens.kv.kv_bytes + a.tokens.list_bytes() + 4 * exact;
  for (const LowRankShape& s : low_rank_shapes(a)) c.flops += 2 * s.entries * s.width * a.rank;
  c.flops -= 2 * exact * d * a.rank;
  if (a.is_pre_rope) c.flops += 3 * (n - exact) * d;
  return c;
}

}  // namespace

OpCall call(const LowRankFactor& a) {
  if (a.unpacks) return cost_to_unpack(a);
  const std::int64_t n = a.tokens.total(), products = 2 * a.rounds + 2;
  OpCall c{.op = "low_rank_factor", .rows = a.tokens.kv.num_rows, .tokens = n, .outputs = n};
  c.bytes = products * (a.tokens.dense_bytes() + a.tokens.list_bytes()) + 2 * (left_numbers(a) + right_numbers(a));
  for (const LowRankShape& s : low_rank_shapes(a))
    c.flops += products * 2 * s.entries * s.width * a.rank + (a.rounds + 1) * 2 * (s.entries + s.width) * a.rank * a.rank;
  return c;
}
KVLAB_WITHOUT_CUDA(LowRankFactor)

void stored_arrays(LowRankFactor& a, StoredArrays& arrays) {
  const std::int64_t rank = a.rank, d = a.tokens.kv.head_dim;
  arrays.rows(a.left, [=](std::int64_t entries) { return entries * rank; });
  arrays.rows(a.right, [=](std::int64_t) { return d * rank; });
}

}  // namespace kvlab
