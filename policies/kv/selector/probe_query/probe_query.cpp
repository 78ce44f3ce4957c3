#include "policies/kv/selector/probe_query/probe_query.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvlab {

OpCall call(const QueryRing& a) {
  OpCall c{.op = "query_ring", .rows = a.num_sequences};
  for (std::int32_t s = 0; s < a.num_sequences; ++s) c.outputs += std::min(a.queries[s].count, a.capacity);
  c.bytes = 4 * c.outputs * a.width;
  return c;
}
KVLAB_WITHOUT_CUDA(QueryRing)

void run_cpu(const QueryRing& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const Queries& q = a.queries[s];
    for (std::int32_t t = std::max(0, q.count - a.capacity); t < q.count; ++t)
      std::copy_n(q.data + static_cast<std::int64_t>(t) * a.width, a.width,
                  a.ring[s] + static_cast<std::int64_t>((q.first_position + t) % a.capacity) * a.width);
  }
}

OpCall call(const ProbeQuery& a) {
  OpCall c{.op = "probe_query", .rows = a.num_sequences, .outputs = a.num_sequences};
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const std::int64_t values = static_cast<std::int64_t>(a.held[s]) * a.width;
    c.tokens += a.held[s];
    c.bytes += 2 * values + 4LL * a.width;
    c.flops += 6 * values;
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ProbeQuery)

void run_cpu(const ProbeQuery& a) {
  const auto width = static_cast<std::size_t>(a.width);
  std::vector<double> mean(width), distance, weight;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const auto held = static_cast<std::size_t>(a.held[s]);
    const auto q = [&](std::size_t i, std::size_t c) { return static_cast<double>(a.ring[s][i * width + c]); };
    std::fill(mean.begin(), mean.end(), 0.0);
    for (std::size_t i = 0; i < held; ++i)
      for (std::size_t c = 0; c < width; ++c) mean[c] += q(i, c) / static_cast<double>(held);
    distance.assign(held, 0.0);
    double deviation = 0;
    for (std::size_t i = 0; i < held; ++i) {
      for (std::size_t c = 0; c < width; ++c) distance[i] += (q(i, c) - mean[c]) * (q(i, c) - mean[c]);
      deviation += distance[i] / static_cast<double>(held);
    }
    double sum = 0;
    weight.assign(held, 0.0);
    for (std::size_t i = 0; i < held; ++i) sum += weight[i] = std::exp(deviation > 0 ? std::sqrt(distance[i] / deviation) : 0.0);
    float* probe = a.probe + s * static_cast<std::int64_t>(width);
    for (std::size_t c = 0; c < width; ++c) {
      double x = 0;
      for (std::size_t i = 0; i < held; ++i) x += weight[i] / sum * q(i, c);
      probe[c] = static_cast<float>(x);
    }
  }
}

OpCall call(const EntropyShare& a) {
  const std::int32_t rows = a.num_sequences * a.kv_heads;
  const std::int64_t units = a.first[rows];
  return {.op = "entropy_share",
          .rows = rows,
          .tokens = units,
          .outputs = rows,
          .bytes = 4 * units + 4LL * a.num_sequences * a.num_layers + 4LL * rows,
          .flops = 4 * units};
}
KVLAB_WITHOUT_CUDA(EntropyShare)

void run_cpu(const EntropyShare& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    const std::int32_t row0 = s * a.kv_heads, end = row0 + a.kv_heads;
    double entropy = 0;
    for (std::int64_t i = a.first[row0]; i < a.first[end]; ++i) {
      const auto p = static_cast<double>(a.probabilities[i]);
      if (p > 0) entropy -= p * std::log(p) / a.kv_heads;
    }
    if (a.first[end] > a.first[row0]) a.entropies[s][a.layer] = static_cast<float>(entropy);
    double known = 0, layers = 0;
    for (std::int32_t l = 0; l < a.num_layers; ++l)
      if (a.entropies[s][l] > 0) known += static_cast<double>(a.entropies[s][l]), layers += 1;
    const double scale = entropy > 0 ? entropy / (known / layers) : 1.0;
    for (std::int32_t r = row0; r < end; ++r) {
      const double wanted = std::min(std::nearbyint(a.average[r] * scale), 2.0 * a.average[r]);
      const auto units = static_cast<double>(a.first[r + 1] - a.first[r]);
      a.keep[r] = units == 0 ? 0 : static_cast<std::int32_t>(std::clamp(wanted, 1.0, units));
    }
  }
}

}  // namespace kvlab
