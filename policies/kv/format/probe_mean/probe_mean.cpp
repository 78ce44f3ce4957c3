#include "policies/kv/format/probe_mean/probe_mean.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include "kernels/score/token_stats/token_stats.h"

namespace kvlab {

OpCall call(const ProbeSums& a) {
  OpCall c{.op = "probe_sums", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int32_t s = a.kv.sequence(r);
    const std::int64_t n = a.kv.len[r];
    std::int64_t probes = 0, pairs = 0;
    for (std::int64_t j = a.first[s]; j < a.first[s + 1]; ++j) {
      const Queries& piece = a.pieces[j];
      const std::int64_t later = a.end[s] - (piece.first_position + piece.count);
      probes += piece.count;
      pairs += causal_pairs(piece.count, std::max<std::int64_t>(0, n - later));
    }
    if (probes == 0) continue;
    c.tokens += n;
    c.outputs += n;
    c.bytes += n * (static_cast<std::int64_t>(a.kv.head_dim) * a.kv.kv_bytes + 8) + probes * a.kv.group * a.kv.head_dim * 2;
    c.flops += 2 * pairs * (a.kv.group * (a.kv.head_dim + 1) + 1);
  }
  return c;
}
KVLAB_WITHOUT_CUDA(ProbeSums)

void run_cpu(const ProbeSums& a) {
  const auto sequences = static_cast<std::size_t>(a.kv.num_sequences());
  std::int64_t most = 0;
  for (std::size_t s = 0; s < sequences; ++s) most = std::max(most, a.first[s + 1] - a.first[s]);
  std::vector<Queries> queries(sequences);
  for (std::int64_t j = 0; j < most; ++j) {
    for (std::size_t s = 0; s < sequences; ++s) queries[s] = a.first[s] + j < a.first[s + 1] ? a.pieces[a.first[s] + j] : Queries{};
    TokenStats stats;
    stats.kv = a.kv;
    stats.queries = queries.data();
    stats.first_word = a.channel;
    run_cpu(stats);
  }
}

OpCall call(const ProbeMean& a) {
  const std::int64_t n = a.kv.total();
  return {.op = "probe_mean", .rows = a.kv.num_rows, .tokens = n, .outputs = n, .bytes = 12 * n, .flops = n};
}
KVLAB_WITHOUT_CUDA(ProbeMean)

void run_cpu(const ProbeMean& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int32_t s = a.kv.sequence(r);
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) {
      const std::int32_t position = a.kv.position[a.kv.slot(r, i)];
      std::int64_t probes = 0;
      for (std::int64_t j = a.first[s]; j < a.first[s + 1]; ++j) probes += std::max(0, a.end[j] - std::max(a.begin[j], position));
      const float sum = std::bit_cast<float>(a.kv.word(a.channel, r, i));
      a.scores[a.kv.first[r] + i] = probes > 0 ? sum / static_cast<float>(probes) : 0.0F;
    }
  }
}

OpCall call(const CoverMass& a) {
  const std::int64_t n = a.first[a.kv.num_rows];
  return {
      .op = "cover_mass", .rows = a.kv.num_rows, .tokens = n, .outputs = a.kv.num_rows, .bytes = 8 * n + 4 * a.kv.num_rows, .flops = 3 * n};
}
KVLAB_WITHOUT_CUDA(CoverMass)

void run_cpu(const CoverMass& a) {
  std::vector<double> mass;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    mass.clear();
    double total = 0;
    for (std::int64_t i = a.first[r]; i < a.first[r + 1] && a.index[i] >= 0; ++i) {
      mass.push_back(double{std::bit_cast<float>(a.kv.word(a.channel, r, a.index[i]))});
      total += mass.back();
    }
    std::sort(mass.begin(), mass.end(), std::greater<>());
    double held = 0;
    std::size_t count = 0;
    while (count < mass.size() && held < a.share * total) held += mass[count++];
    a.count[r] = static_cast<std::int32_t>(count);
  }
}

}  // namespace kvlab
