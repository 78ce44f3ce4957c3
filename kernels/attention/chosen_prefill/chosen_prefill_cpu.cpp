#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention/chosen_prefill/chosen_prefill.h"
#include "kernels/kv_rows.h"
#include "kernels/lanes_cpu.h"

namespace kvlab {

namespace {

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
