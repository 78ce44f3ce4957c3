#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/half.h"
#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "policies/kv/selector/top_mass/top_mass.h"

namespace kvlab {

namespace {

void estimate_key(const float* key, std::int32_t d, std::int32_t bits, float* out) {
  const auto [low, high] = std::minmax_element(key, key + d);
  const auto levels = static_cast<float>((1 << bits) - 1);
  const float zero = round_to_half(*low), scale = round_to_half((*high - *low) / levels);
  for (std::int32_t c = 0; c < d; ++c)
    out[c] = zero + scale * (scale > 0 ? std::clamp(std::nearbyint((key[c] - zero) / scale), 0.0F, levels) : 0.0F);
}

// Marks the fewest of the weights that sum up to at least `share` of their sum.
void mark_mass(const std::vector<float>& weight, double share, std::vector<std::int32_t>& order, std::vector<char>& marked) {
  order.resize(weight.size());
  std::iota(order.begin(), order.end(), 0);
  const auto of = [&](std::int32_t i) { return weight[static_cast<std::size_t>(i)]; };
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return of(a) != of(b) ? of(a) > of(b) : a < b; });
  double sum = 0;
  for (const std::int32_t i : order) sum += static_cast<double>(of(i));
  double kept = 0;
  for (const std::int32_t i : order) {
    if (kept >= share * sum) return;
    marked[static_cast<std::size_t>(i)] = 1;
    kept += static_cast<double>(of(i));
  }
}

void run_row(const TopMass& a, std::int32_t row) {
  const std::int64_t d = a.head_dim, begin = a.first[row], n = a.first[row + 1] - begin;
  a.count[row] = 0;
  if (n == 0) return;
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  const Queries& queries = a.queries[row / a.kv_heads];
  const float* q = queries.data + (static_cast<std::int64_t>(queries.count - 1) * a.kv_heads + row % a.kv_heads) * a.group * d;
  const auto token = [&](std::int64_t i) { return a.lists_tokens ? a.candidate[begin + i] : static_cast<std::int32_t>(i); };
  std::vector<float> weight(static_cast<std::size_t>(n));
  std::vector<char> marked(weight.size(), 0);
  std::vector<std::int32_t> order;
  for (std::int64_t h = 0; h < a.group; ++h) {
    for (std::int64_t i = 0; i < n; ++i)
      weight[static_cast<std::size_t>(i)] = scale * lane_dot(q + h * d, a.estimate[row] + token(i) * d, d);
    const float top = *std::max_element(weight.begin(), weight.end());
    for (float& w : weight) w = std::exp(w - top);
    mark_mass(weight, a.mass, order, marked);
  }
  marked.back() = 1;
  for (std::int64_t i = 0; i < n; ++i)
    if (marked[static_cast<std::size_t>(i)] != 0) a.token[begin + a.count[row]++] = token(i);
}

}  // namespace

void run_cpu(const EstimateKeys& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    for (std::int32_t i = a.from[r]; i < a.kv.len[r]; ++i)
      estimate_key(a.kv.key(r, i), a.kv.head_dim, a.bits, a.estimate[r] + std::int64_t{i} * a.kv.head_dim);
  });
}

void run_cpu(const TopMass& a) {
  for_each_in_parallel(a.num_rows, [&](std::int64_t row) { run_row(a, static_cast<std::int32_t>(row)); });
}

}  // namespace kvlab
