#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Token lists of each KV head of one sequence.
//   kFirst       listed[h, j] = j
//   kCandidates  token: the list, then [begin, end); slot: their places in the pool
//   kChosen      listed[h, j] = token[h, index[h, j]]
//   kKeep        scores of tokens outside the lists become -infinity
struct TokenLists {
  enum class Kind : std::uint8_t { kFirst, kCandidates, kChosen, kKeep };
  KvRows kv;
  std::int32_t sequence = 0, num_listed = 0, begin = 0, end = 0;
  std::int32_t* listed = nullptr;       // [kv_heads, num_listed]
  std::int32_t* token = nullptr;        // [kv_heads, num_listed + end - begin]
  std::int32_t* slot = nullptr;         // the same shape, in CPU memory: pages of a view
  const std::int32_t* index = nullptr;  // [kv_heads, num_listed]
  float* scores = nullptr;              // [kv.total()]
  Kind kind = Kind::kFirst;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = std::int64_t{kv.kv_heads} * (kind == Kind::kCandidates ? candidates() : num_listed);
    return {.op = kind == Kind::kCandidates ? "list_candidates"
                  : kind == Kind::kKeep     ? "keep_listed"
                                            : "list_chosen",
            .rows = kv.kv_heads,
            .tokens = n,
            .outputs = n,
            .bytes = (kind == Kind::kKeep ? 8 : 12) * n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.kv_heads; }
  void shapes(auto&& visit) { visit(kv); }
  void results(auto&& visit) {
    if (kind != Kind::kCandidates) slot = nullptr;
    visit(slot, kv.kv_heads * candidates());
  }
  [[nodiscard]] std::int64_t room(std::int64_t head) const { return kind == Kind::kKeep ? kv.len[row_of(head)] : 0; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t head) const {
    std::int32_t* const list = listed + head * num_listed;
    const std::int64_t first = head * candidates();
    if (kind == Kind::kKeep) return keep(team, row_of(head), list);
    if (kind == Kind::kFirst) return team.each(num_listed, [&](std::int64_t j) { list[j] = static_cast<std::int32_t>(j); });
    if (kind == Kind::kChosen) return team.each(num_listed, [&](std::int64_t j) { list[j] = token[first + index[head * num_listed + j]]; });
    team.each(candidates(), [&](std::int64_t i) {
      token[first + i] = i < num_listed ? list[i] : static_cast<std::int32_t>(begin + i - num_listed);
      slot[first + i] = static_cast<std::int32_t>(kv.slot(row_of(head), token[first + i]));
    });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t candidates() const { return num_listed + end - begin; }
  [[nodiscard]] KVLAB_BOTH std::int32_t row_of(std::int64_t head) const { return sequence * kv.kv_heads + static_cast<std::int32_t>(head); }
  template <class Team>
  KVLAB_BODY void keep(const Team& team, std::int32_t row, const std::int32_t* list) const {
    float *const stays = team.room(), *const of_row = scores + kv.first[row];
    team.each(kv.len[row], [&](std::int64_t i) { stays[i] = 0; });
    team.each(num_listed, [&](std::int64_t j) { stays[list[j]] = 1; });
    team.each(kv.len[row], [&](std::int64_t i) {
      if (stays[i] == 0) of_row[i] = -INFINITY;
    });
  }
};
KVLAB_ROW_OP(TokenLists)

}  // namespace kvlab
