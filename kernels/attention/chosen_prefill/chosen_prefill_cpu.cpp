#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention/chosen_prefill/chosen_prefill.h"
#include "kernels/kv_rows.h"
#include "kernels/lanes_cpu.h"

namespace kvlab {

std::int64_t chosen_pairs(const ChosenPrefill& a) {
  std::int64_t pairs = 0;
  for (std::int64_t l = 0; l < a.num_lists && a.stride == 0; ++l) pairs += a.q_heads / a.num_lists * causal_pairs(a.queries[l], a.keys(l));
  for (std::int64_t t = 0; a.stride > 0 && t < a.num_queries(0); ++t) {
    const std::int64_t seen = a.last_key(0, t) + 1;
    pairs += a.q_heads * (a.window == 0 ? seen : std::min(a.window, seen));
  }
  return pairs;
}

namespace {

// All keys that the last query sees are read once, outputs read and written.
OpCall cost_of_correction(const ChosenPrefill& a) {
  const std::int64_t rows = a.num_queries(0), width = a.q_heads * a.head_dim, pairs = chosen_pairs(a);
  const std::int64_t seen = a.new_tokens == 0 ? 0 : a.window == 0 ? a.end() : std::min(a.window, a.end());
  return {.op = "delta_rows",
          .rows = a.kv_heads,
          .tokens = a.kv_heads * (pairs / a.q_heads),
          .outputs = rows,
          .bytes = 2 * a.kv_heads * seen * a.head_dim * a.kv_bytes + (2 * rows + 2 * a.corrected()) * width * a.activation_bytes,
          .flops = 4 * pairs * a.head_dim + a.corrected() * width};
}

using ChosenChannels = Eigen::Map<Eigen::ArrayXf>;
using ConstChosenChannels = Eigen::Map<const Eigen::ArrayXf>;

std::vector<std::int32_t> chosen_positions(const ChosenPrefill& a, std::int64_t list) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(a.head));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t j = a.first[list]; j < a.first[list + 1]; ++j) all.push_back(a.base + a.index[j]);
  for (std::int64_t i = a.tail; i < a.end(); ++i) all.push_back(static_cast<std::int32_t>(i));
  return all;
}

// Query i over keys at these positions, its own last.
void attend_chosen(const ChosenPrefill& a, std::int64_t i, std::int64_t h, const std::int32_t* keys, std::int64_t count) {
  const std::int64_t d = a.head_dim, kv_head = h / (a.q_heads / a.kv_heads);
  const float* const q = a.q + (i * a.q_heads + h) * d;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  const auto at = [&](const float* x, std::int64_t j) { return x + (keys[j] * a.kv_heads + kv_head) * d; };
  Eigen::ArrayXf weight(count), x = Eigen::ArrayXf::Zero(d);
  for (std::int64_t j = 0; j < count; ++j) weight[j] = scale * lane_dot(q, at(a.k, j), d);
  const float top = weight.maxCoeff();
  weight = (weight - top).exp();
  const float sum = weight.sum();
  for (std::int64_t j = 0; j < count; ++j) x += weight[j] / sum * ConstChosenChannels(at(a.v, j), d);
  const auto out = [&](std::int64_t row) { return ChosenChannels(a.out + (row * a.q_heads + h) * d, d); };
  const std::int64_t end = a.corrects_to(i);
  const Eigen::ArrayXf difference = x - out(i);
  if (end == i) out(i) = x;
  for (std::int64_t row = i; row < end; ++row) out(row) += difference;
  if (a.log_sum != nullptr) a.log_sum[i * a.q_heads + h] = top + std::log(sum);
}

}  // namespace

OpCall call(const ChosenPrefill& a) {
  if (a.stride > 0) return cost_of_correction(a);
  OpCall c{.op = "chosen_prefill", .rows = a.kv_heads};
  for (std::int64_t l = 0; l < a.num_lists; ++l) {
    const std::int64_t kv_heads = a.kv_heads / a.num_lists, heads = a.q_heads / a.num_lists;
    c.tokens += kv_heads * a.keys(l);
    c.bytes += a.head_dim * (2 * kv_heads * a.keys(l) * a.kv_bytes + heads * (a.queries[l] + a.new_tokens) * a.activation_bytes);
  }
  c.outputs = a.new_tokens;
  c.flops = 4 * a.head_dim * chosen_pairs(a);
  return c;
}
KVLAB_WITHOUT_CUDA(ChosenPrefill)

void run_cpu(const ChosenPrefill& a) {
  if (a.stride == 0) std::fill_n(a.out, a.new_tokens * a.q_heads * a.head_dim, 0.0F);
  if (a.log_sum != nullptr) std::fill_n(a.log_sum, a.new_tokens * a.q_heads, -HUGE_VALF);
  for (std::int64_t list = 0; list < a.num_lists; ++list) {
    const std::vector<std::int32_t> chosen = chosen_positions(a, list);
    const std::int64_t heads = a.q_heads / a.num_lists;
    for_each_in_parallel(a.num_queries(list) * heads, [&](std::int64_t task) {
      const auto last = chosen.begin() + a.last_key(list, task / heads);
      const auto from = a.window > 0 ? std::upper_bound(chosen.begin(), last, *last - a.window) : chosen.begin();
      attend_chosen(a, *last - a.kv_before, list * heads + task % heads, &*from, last - from + 1);
    });
  }
}

}  // namespace kvlab
