#pragma once

#include "base/ceil_div.h"
#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/key_estimate.h"
#include "kernels/rows/row_op.h"

// A second copy of the cache in few bits: SpeCache, Jie et al. 2025, arXiv:2503.16163.
namespace kvlab {

// Groups of `group` consecutive tokens of a channel of K, and of `group` neighbouring channels of a token of V, share zero and scale
// (fp16). x ~ zero + scale * code; zero = min, scale = (max - min) / (2^bits - 1), but with one bit zero = (3 min + max) / 4 and
// scale = (max - min) / 2: the two levels are the quarter points of the range.
struct LowBitCode {
  std::int32_t bits = 2, group = 32;

  // Stored bytes of K and V of one row's first `tokens` tokens, whole groups.
  [[nodiscard]] std::int64_t bytes(std::int64_t tokens, std::int32_t head_dim) const {
    const std::int64_t k_groups = ceil_div(tokens, group) * head_dim, v_groups = tokens * ceil_div(head_dim, group);
    return 2 * ((tokens * head_dim * bits + 7) / 8) + 4 * (k_groups + v_groups);
  }
};

// Decodes the copy: out holds tokens [0, covered[r]) of each row after coding, the others unchanged. covered[r] is a multiple of
// code.group. Every call writes the whole copy, but only tokens from coded[r] on count as encoded in this one.
struct LowBitCopy {
  KvRows kv;
  LowBitCode code;
  const std::int32_t *coded = nullptr, *covered = nullptr;  // [kv.num_rows], coded <= covered
  KvRows out;                                               // same lengths, other memory

  // K and V of newly coded tokens are read, codes written; 4 operations per element.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "low_bit_copy", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = covered[r] - coded[r];
      c.tokens += n;
      c.outputs += n;
      c.bytes += 2 * n * kv.head_dim * kv.kv_bytes + code.bytes(n, kv.head_dim);
      c.flops += 8 * n * kv.head_dim;
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  // A team takes a group of tokens.
  [[nodiscard]] std::int64_t rows() const {
    std::int64_t n = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) n += groups(r);
    return n;
  }
  void shapes(auto&& visit) { visit(coded, kv.num_rows), visit(covered, kv.num_rows), visit(kv), visit(out); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    std::int32_t row = 0;
    while (item >= groups(row)) item -= groups(row++);
    const auto begin = static_cast<std::int32_t>(item * code.group);
    const std::int32_t rest = kv.len[row] - begin, n = rest < code.group ? rest : code.group;
    if (begin < covered[row])
      decode(team, row, begin);
    else
      team.each(std::int64_t{n} * kv.head_dim, [&](std::int64_t i) {
        const auto token = static_cast<std::int32_t>(begin + i / kv.head_dim);
        put_key(row, token, i % kv.head_dim, key(row, token, i % kv.head_dim));
        put_value(row, token, i % kv.head_dim, value(row, token, i % kv.head_dim));
      });
    team.each(n, [&](std::int64_t i) {
      const auto token = static_cast<std::int32_t>(begin + i);
      out.position[out.slot(row, token)] = kv.position[kv.slot(row, token)];
    });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t groups(std::int32_t row) const { return (kv.len[row] + code.group - 1) / code.group; }
  [[nodiscard]] KVLAB_BODY float key(std::int32_t row, std::int32_t token, std::int64_t c) const {
    return element_at(kv.k, kv.slot(row, token) * kv.head_dim + c, kv.type);
  }
  [[nodiscard]] KVLAB_BODY float value(std::int32_t row, std::int32_t token, std::int64_t c) const {
    return element_at(kv.v, kv.slot(row, token) * kv.head_dim + c, kv.type);
  }
  KVLAB_BODY void put_key(std::int32_t row, std::int32_t token, std::int64_t c, float x) const {
    set_element(out.k, out.slot(row, token) * kv.head_dim + c, out.type, x);
  }
  KVLAB_BODY void put_value(std::int32_t row, std::int32_t token, std::int64_t c, float x) const {
    set_element(out.v, out.slot(row, token) * kv.head_dim + c, out.type, x);
  }

  // The tokens of a coded group.
  template <class Team>
  KVLAB_BODY void decode(const Team& team, std::int32_t row, std::int32_t begin) const {
    team.each(kv.head_dim, [&](std::int64_t c) {
      const auto token = [&](std::int64_t i) { return static_cast<std::int32_t>(begin + i); };
      round_to_levels(
          code.group, code.bits, code.bits == 1, [&](std::int64_t i) { return key(row, token(i), c); },
          [&](std::int64_t i, float x) { put_key(row, token(i), c, x); });
    });
    const std::int64_t parts = (kv.head_dim + code.group - 1) / code.group;
    team.each(code.group * parts, [&](std::int64_t at) {
      const auto token = static_cast<std::int32_t>(begin + at / parts);
      const std::int64_t c = at % parts * code.group, rest = kv.head_dim - c;
      round_to_levels(
          rest < code.group ? rest : code.group, code.bits, code.bits == 1, [&](std::int64_t i) { return value(row, token, c + i); },
          [&](std::int64_t i, float x) { put_value(row, token, c + i, x); });
    });
  }
};
KVLAB_ROW_OP(LowBitCopy)

// Attention over such a copy, reduced per token: AttentionStats that reads codes.
struct LowBitAttention {
  AttentionStats stats;  // over LowBitCopy::out
  LowBitCode code;
  const std::int32_t* covered = nullptr;  // [num_rows]
};
// Like AttentionStats, with half of the covered tokens' codes (K) in place of their keys.
inline OpCall call(const LowBitAttention& a) {
  OpCall c = call(a.stats);
  c.op = "low_bit_attention";
  const KvRows& kv = a.stats.kv;
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    if (a.stats.queries[kv.sequence(r)].count > 0)
      c.bytes += a.code.bytes(a.covered[r], kv.head_dim) / 2 - static_cast<std::int64_t>(a.covered[r]) * kv.head_dim * kv.kv_bytes;
  return c;
}
inline void run_cpu(const LowBitAttention& a) { run_cpu(a.stats); }
inline void run_cuda(const LowBitAttention& a, CudaContext& cuda) { run_cuda(a.stats, cuda); }

}  // namespace kvlab
