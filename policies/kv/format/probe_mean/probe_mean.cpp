#include "policies/kv/format/probe_mean/probe_mean.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

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
  for_each_piece(a, [](const TokenStats& stats) { run_cpu(stats); });
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
