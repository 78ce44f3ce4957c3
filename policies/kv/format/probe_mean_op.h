#pragma once

#include <bit>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Mean attention from the probes that could see a token: the sum in word `channel` (float32) over the number of probes at or after its
// position, 0 without any (ZipCache, He et al. 2024, arXiv:2405.14256, eq. 8). Probes of sequence s are the positions [begin[j], end[j]),
// first[s] <= j < first[s + 1].
struct ProbeMean {
  KvRows kv;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_sequences + 1]
  const std::int32_t *begin = nullptr, *end = nullptr;
  float* scores = nullptr;  // [kv.total()] out

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    return {.op = "probe_mean", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = 12 * n, .flops = n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) {
    const std::int64_t sequences = kv.num_sequences(), pieces = first[sequences];
    visit(kv), visit(first, sequences + 1), visit(begin, pieces), visit(end, pieces);
  }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return kv.len[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const std::int32_t s = kv.sequence(static_cast<std::int32_t>(row));
    const std::int64_t slot = kv.slot(static_cast<std::int32_t>(row), static_cast<std::int32_t>(i));
    const std::int32_t position = kv.position[slot];
    std::int64_t probes = 0;
    for (std::int64_t j = first[s]; j < first[s + 1]; ++j) {
      const std::int32_t seen = end[j] - (begin[j] < position ? position : begin[j]);
      probes += seen < 0 ? 0 : seen;
    }
    const auto sum = std::bit_cast<float>(kv.words[channel * kv.pool_tokens + slot]);
    scores[kv.first[row] + i] = probes > 0 ? sum / static_cast<float>(probes) : 0.0F;
  }
};
KVLAB_EACH_OP(ProbeMean)

}  // namespace kvlab
