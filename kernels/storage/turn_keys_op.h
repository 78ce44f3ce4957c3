#pragma once

#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

// A key's place is the position of its RoPE angle. A row's places are consecutive up to the sequence's last position: token i of n at end -
// n + i, entry j of m listed tokens at end - m + j (StreamingLLM: Xiao et al. 2023, arXiv:2309.17453, section 3.2).
namespace kvlab {

struct Places {
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;        // ascending within a row
  const std::int32_t* end = nullptr;          // [num_sequences] one past the last position
  const float* frequencies = nullptr;         // [num_sequences, head_dim / 2] radians per position, in CPU memory; null: no RoPE
};

// Turns listed keys at the front of their rows (lengths are those before the move), or copies K, V and positions to other rows and turns
// the copies. fp32 with one rounding. head_dim is even.
struct TurnKeys {
  KvRows kv;
  Places places;
  bool copies = false;
  KvRows out = {};  // room for the rows' lists

  [[nodiscard]] OpCall cost() const {
    const std::int64_t listed = places.index_first[kv.num_rows], d = kv.head_dim;
    return {.op = copies ? "place_selected" : "renumber_keys",
            .rows = kv.num_rows,
            .tokens = listed,
            .outputs = listed,
            .bytes = listed * ((copies ? 4 : 2) * d * kv.kv_bytes + (copies ? 12 : 4)),
            .flops = 3 * listed * d};
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return copies || places.frequencies != nullptr ? kv.num_rows : 0; }
  void shapes(auto&& visit) {
    const std::int64_t sequences = kv.num_sequences();
    visit(kv), visit(places.index_first, kv.num_rows + 1), visit(places.end, sequences);
    visit(places.frequencies, sequences * (kv.head_dim / 2));
    if (copies) visit(out);
  }

  // Radians between token i of n and entry j of m, in fp32 as Rotary.
  [[nodiscard]] KVLAB_BOTH static double angle_of(std::int64_t end, std::int64_t n, std::int64_t i, std::int64_t m, std::int64_t j,
                                                  float frequency) {
    const float from = static_cast<float>(end - n + i) * frequency, to = static_cast<float>(end - m + j) * frequency;
    return static_cast<double>(to) - static_cast<double>(from);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    team.each(places.index_first[row + 1] - places.index_first[row], [&](std::int64_t j) { place(static_cast<std::int32_t>(row), j); });
  }

 private:
  KVLAB_BODY void place(std::int32_t row, std::int64_t j) const {
    const KvRows& target = copies ? out : kv;
    const std::int64_t d = kv.head_dim, first = places.index_first[row], m = places.index_first[row + 1] - first;
    const std::int64_t to = target.slot(row, static_cast<std::int32_t>(j));
    const std::int32_t i = places.index[first + j], n = kv.len[row];
    if (copies) {
      const std::int64_t from = kv.slot(row, i);
      copy_bits(kv.k, from * d, out.k, to * d, d, kv.type);
      copy_bits(kv.v, from * d, out.v, to * d, d, kv.type);
      out.position[to] = kv.position[from];
    }
    if (places.frequencies == nullptr || n - i == m - j) return;  // keeps its place
    const std::int32_t sequence = kv.sequence(row);
    const std::int64_t half = d / 2, end = places.end[sequence];
    for (std::int64_t c = to * d; c < to * d + half; ++c) {
      const double angle = angle_of(end, n, i, m, j, places.frequencies[sequence * half + c - to * d]);
      const auto cosine = static_cast<float>(std::cos(angle)), sine = static_cast<float>(std::sin(angle));
      const float x = element_at(target.k, c, kv.type), y = element_at(target.k, c + half, kv.type);
      set_element(target.k, c, kv.type, x * cosine - y * sine);
      set_element(target.k, c + half, kv.type, y * cosine + x * sine);
    }
  }
};
KVLAB_ROW_OP(TurnKeys)

}  // namespace kvlab
