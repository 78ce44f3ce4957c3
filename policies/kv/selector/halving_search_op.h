#pragma once

#include "base/ceil_div.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Finds keep[r] of the blocks[r] key blocks of a row without reading most keys: the blocks are cut into keep[r] groups of neighbours; in
// each round every group splits in two, a half's score is the product of the query and its middle token, summed over the row's query
// heads, and the best keep[r] halves stay (ties: the earlier), until groups are single blocks. HiP attention, Lee et al. 2024.
struct HalvingSearch {
  KvRows kv;
  const Queries* queries = nullptr;  // [num_sequences], the last one of each counts
  std::int32_t block_tokens = 1;
  const std::int32_t* base = nullptr;    // [num_rows] first token of block 0
  const std::int32_t* blocks = nullptr;  // [num_rows]
  const std::int32_t* keep = nullptr;    // [num_rows] <= blocks
  const std::int64_t* first = nullptr;   // [num_rows + 1] prefix sums of keep
  std::int32_t* block = nullptr;         // [first[num_rows]] out, ascending

  // Until the largest group is one block.
  [[nodiscard]] KVLAB_BOTH std::int32_t rounds(std::int64_t r) const {
    std::int32_t n = 0;
    for (std::int32_t most = keep[r] == 0 ? 1 : (blocks[r] + keep[r] - 1) / keep[r]; most > 1; most = (most + 1) / 2) ++n;
    return n;
  }
  // Each round reads 2 * keep keys and chooses the best half; groups of one block are counted as if they were split.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "halving_search", .rows = kv.num_rows, .outputs = first[kv.num_rows], .bytes = 4 * first[kv.num_rows]};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t judged = 2LL * keep[r] * rounds(r);
      if (judged == 0) continue;
      c.tokens += judged;
      c.bytes += judged * (static_cast<std::int64_t>(kv.head_dim) * kv.kv_bytes + 8) + 2LL * kv.group * kv.head_dim;
      c.flops += judged * (2LL * kv.group * kv.head_dim + 2);
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  // Bounds of groups and halves; a score and a mark of each half.
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return 10LL * keep[row]; }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_rows;
    visit(queries, kv.num_sequences()), visit(base, n), visit(blocks, n), visit(keep, n), visit(first, n + 1), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = blocks[row], kept = keep[row];
    auto *const groups = reinterpret_cast<Blocks*>(team.room()), *const halves = groups + kept;
    float* const score = team.room() + 6 * kept;
    auto* const marked = reinterpret_cast<std::int32_t*>(score + 2 * kept);
    team.each(kept, [&](std::int64_t g) {
      groups[g] = {static_cast<std::int32_t>(g * n / kept), static_cast<std::int32_t>((g + 1) * n / kept)};
    });
    const std::int32_t last = rounds(row);
    for (std::int32_t round = 0; round < last; ++round) {
      const std::int64_t split = team.pack(
          2 * kept, [&](std::int64_t i) { return i % 2 == 1 || groups[i / 2].middle() > groups[i / 2].begin; },
          [&](std::int64_t k, std::int64_t i) {
            const Blocks g = groups[i / 2];
            halves[k] = i % 2 == 1 ? Blocks{g.middle(), g.end} : Blocks{g.begin, g.middle()};
          });
      team.each(split, [&](std::int64_t i) { score[i] = judge(team, row, halves[i]); });
      mark_best(
          team, static_cast<std::int32_t>(split), keep[row], [&](std::int32_t i) { return score[i]; }, marked);
      team.pack(
          split, [&](std::int64_t i) { return marked[i] != 0; }, [&](std::int64_t k, std::int64_t i) { groups[k] = halves[i]; });
    }
    team.each(kept, [&](std::int64_t g) { block[first[row] + g] = groups[g].begin; });
  }

 private:
  struct Blocks {
    std::int32_t begin, end;
    [[nodiscard]] KVLAB_BODY std::int32_t middle() const { return begin + (end - begin) / 2; }
  };
  template <class Team>
  [[nodiscard]] KVLAB_BODY float judge(const Team& team, std::int64_t row, Blocks half) const {
    const std::int64_t d = kv.head_dim;
    const float* const heads = queries[row / kv.kv_heads].last(row % kv.kv_heads, kv.kv_heads, kv.group, kv.head_dim);
    const auto key = key_of(team, kv, row, base[row] + (half.begin + half.end) * block_tokens / 2);
    float sum = 0.0F;
    for (std::int64_t h = 0; h < kv.group; ++h) sum += team.dot(heads + h * d, key, d);
    return sum;
  }
};
KVLAB_ROW_OP(HalvingSearch)

}  // namespace kvlab
