#pragma once

#include <bit>
#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/storage/compact/compact.h"

namespace kvlab {

// The last tokens of each row replace a few dropped ones: K, V, positions and statistics. Positions lose their order. The caller updates
// lengths.
struct EvictRows {
  // kLowest: the tokens of lowest score; among equals the later positions, as TopK on rows in order. NaN counts as -infinity. kPositions:
  // the tokens at positions from[r], from[r] + 1, ..., which the row holds; guess[r] is tried first. kListed: `dropped` is given.
  enum class Choice : std::uint8_t { kLowest, kPositions, kListed };
  static constexpr std::int32_t kMost = 32;  // per row; kLowest reads the scores twice for each
  static constexpr bool kInParallel = true;

  KvRows kv;
  const std::int64_t* first = nullptr;  // [num_rows + 1]; empty: row unchanged
  std::int32_t* dropped = nullptr;      // [first[num_rows]] places in the row, ascending
  Choice choice = Choice::kLowest;
  const float* scores = nullptr;        // kLowest: [kv.total()]
  const std::int32_t* from = nullptr;   // kPositions: [num_rows]
  const std::int32_t* guess = nullptr;  // kPositions: [num_rows]
  bool moves = true;                    // false: writes only `dropped`

  [[nodiscard]] OpCall cost() const {
    const std::int64_t total = kv.num_rows == 0 ? 0 : first[kv.num_rows];
    OpCall c{.op = "evict", .rows = kv.num_rows, .outputs = total};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t d = count(r), read = choice == Choice::kLowest || (choice == Choice::kPositions && d > 1) ? kv.len[r] : d;
      if (d == 0) continue;
      c.tokens += read;
      c.bytes += 4 * read;
      c.flops += 2 * read * (choice == Choice::kLowest ? d : 1);
    }
    const CompactShape moved{moves ? total : 0, 1, 1, kv.head_dim, kv.kv_bytes};
    c.bytes += 4 * total + bytes(moved) + moved.tokens * (8 + 8 * kv.num_words);
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return count(row) + 1; }
  void shapes(auto&& visit) { visit(kv), visit(first, kv.num_rows + 1), visit(from, kv.num_rows), visit(guess, kv.num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t at) const {
    const auto row = static_cast<std::int32_t>(at);
    const std::int32_t d = count(row);
    if (d == 0) return;
    std::int32_t *const going = dropped + first[row], *const source = reinterpret_cast<std::int32_t*>(team.room());
    if (choice == Choice::kLowest) list_lowest(team, row, d, going);
    if (choice == Choice::kPositions) list_positions(team, row, d, going);
    if (!moves) return;
    team.once([&] { source[d] = plan_moves(going, d, kv.len[row] - d, source); });
    const std::int64_t width = kv.head_dim, words = kv.num_words, n = source[d];
    team.each(n * width, [&](std::int64_t i) {
      const std::int64_t c = i % width, x = kv.slot(row, source[i / width]) * width + c, y = kv.slot(row, going[i / width]) * width + c;
      copy_bits(kv.k, x, kv.k, y, 1, kv.type);
      copy_bits(kv.v, x, kv.v, y, 1, kv.type);
    });
    team.each(n * (1 + words), [&](std::int64_t i) {
      const std::int64_t w = i / n, x = kv.slot(row, source[i % n]), y = kv.slot(row, going[i % n]);
      if (w == words)
        kv.position[y] = kv.position[x];
      else
        kv.words[w * kv.pool_tokens + y] = kv.words[w * kv.pool_tokens + x];
    });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int32_t count(std::int64_t row) const { return static_cast<std::int32_t>(first[row + 1] - first[row]); }
  [[nodiscard]] KVLAB_BODY std::int32_t position(std::int32_t row, std::int64_t i) const {
    return kv.position[kv.slot(row, static_cast<std::int32_t>(i))];
  }

  // Larger for lower scores; positive.
  [[nodiscard]] KVLAB_BODY std::uint32_t key(std::int32_t row, std::int64_t i) const {
    const float score = scores[kv.first[row] + i];
    const auto bits = std::bit_cast<std::uint32_t>(std::isnan(score) ? -INFINITY : score + 0.0F);  // of -0 those of 0
    return (bits & 0x80000000U) != 0 ? bits : ~bits & 0x7FFFFFFFU;
  }
  // Reads positions of scores that equal the lowest left or the last found.
  template <class Team>
  KVLAB_BODY void list_lowest(const Team& team, std::int32_t row, std::int32_t d, std::int32_t* going) const {
    const std::int32_t n = kv.len[row];
    std::uint32_t last = ~std::uint32_t{0};
    std::int32_t last_position = 0;
    for (std::int32_t j = 0; j < d; ++j) {
      const auto left = [&](std::int64_t i) {
        const std::uint32_t mine = key(row, i);
        return mine < last || (mine == last && position(row, i) < last_position) ? mine : 0;
      };
      const std::uint32_t largest = team.max(n, std::uint32_t{0}, left);
      const std::uint64_t found = team.max(n, std::uint64_t{0}, [&](std::int64_t i) {
        if (key(row, i) != largest || left(i) == 0) return std::uint64_t{0};
        return std::uint64_t{static_cast<std::uint32_t>(position(row, i))} << 32 | static_cast<std::uint32_t>(i);
      });
      last = largest, last_position = static_cast<std::int32_t>(found >> 32);
      team.once([&] { going[j] = static_cast<std::int32_t>(found & 0xFFFFFFFFU); });
    }
    team.once([&] {
      for (std::int32_t i = 1; i < d; ++i)
        for (std::int32_t j = i; j > 0 && going[j] < going[j - 1]; --j) {
          const std::int32_t place = going[j];
          going[j] = going[j - 1], going[j - 1] = place;
        }
    });
  }
  template <class Team>
  KVLAB_BODY void list_positions(const Team& team, std::int32_t row, std::int32_t d, std::int32_t* going) const {
    const std::int32_t begin = from[row], place = guess[row], n = kv.len[row];
    const auto goes = [&](std::int64_t i) { return position(row, i) >= begin && position(row, i) < begin + d; };
    if (d == 1 && place >= 0 && place < n && goes(place)) return team.once([&] { going[0] = place; });
    team.pack(n, goes, [&](std::int64_t k, std::int64_t i) { going[k] = static_cast<std::int32_t>(i); });
  }
  // Free place i among the first `keep` gets kept token i of the others. Returns the number of moves.
  static KVLAB_BODY std::int32_t plan_moves(const std::int32_t* going, std::int32_t d, std::int32_t keep, std::int32_t* source) {
    std::int32_t holes = 0;
    while (holes < d && going[holes] < keep) ++holes;
    std::int32_t gone = holes, next = keep;
    for (std::int32_t h = 0; h < holes; ++h, ++next) {
      for (; gone < d && going[gone] == next; ++gone) ++next;
      source[h] = next;
    }
    return holes;
  }
};
KVLAB_ROW_OP(EvictRows)

}  // namespace kvlab
