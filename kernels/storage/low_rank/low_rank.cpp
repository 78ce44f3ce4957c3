#include "kernels/storage/low_rank/low_rank.h"

#include "base/error.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

namespace {

// Calls f(entries, width) for each matrix.
template <class F>
void for_each_shape(const LowRankFactor& a, F&& f) {
  const KvRows& kv = a.tokens.kv;
  const std::int32_t step = a.joint_heads ? kv.kv_heads : 1;
  for (std::int32_t r = 0; r < kv.num_rows; r += step)
    if (a.tokens.entries(r) > 0) f(std::int64_t{a.tokens.entries(r)}, std::int64_t{step} * kv.head_dim);
}

}  // namespace

void check_heads(const LowRankFactor& a) {
  for (std::int32_t r = 0; a.joint_heads && r < a.tokens.kv.num_rows; ++r)
    if (a.tokens.entries(r) != a.tokens.entries(r / a.tokens.kv.kv_heads * a.tokens.kv.kv_heads))
      throw InternalError("low_rank_factor: lists of a sequence's KV heads differ in length");
}

std::int64_t left_numbers(const LowRankFactor& a) {
  std::int64_t n = 0;
  for_each_shape(a, [&](std::int64_t entries, std::int64_t) { n += entries * a.rank; });
  return n;
}

std::int64_t right_numbers(const LowRankFactor& a) {
  std::int64_t n = 0;
  for_each_shape(a, [&](std::int64_t, std::int64_t width) { n += width * a.rank; });
  return n;
}

namespace {

OpCall cost_to_unpack(const LowRankFactor& a) {
  const std::int64_t n = a.tokens.total(), exact = a.num_exact(), d = a.tokens.kv.head_dim;
  OpCall c{.op = "low_rank_rebuild", .rows = a.tokens.kv.num_rows, .tokens = n, .outputs = n - exact};
  c.bytes = 2 * (left_numbers(a) + right_numbers(a)) + (n - exact) * d * a.tokens.kv.kv_bytes + a.tokens.list_bytes() + 4 * exact;
  for_each_shape(a, [&](std::int64_t entries, std::int64_t width) { c.flops += 2 * entries * width * a.rank; });
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
  for_each_shape(a, [&](std::int64_t entries, std::int64_t width) {
    c.flops += products * 2 * entries * width * a.rank + (a.rounds + 1) * 2 * (entries + width) * a.rank * a.rank;
  });
  return c;
}
KVLAB_WITHOUT_CUDA(LowRankFactor)

void stored_arrays(LowRankFactor& a, StoredArrays& arrays) {
  const std::int64_t rank = a.rank, d = a.tokens.kv.head_dim;
  arrays.rows(a.left, [=](std::int64_t entries) { return entries * rank; });
  arrays.rows(a.right, [=](std::int64_t) { return d * rank; });
}

}  // namespace kvlab
