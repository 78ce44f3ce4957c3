#pragma once

#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Lowers scores of tokens with keys like those of better ones. Sources are the `sources[r]` tokens of largest score of row r; every token j
// becomes s_j * (1 - max(0, cos(k_j, k_src))), with the largest cosine over the sources other than j, or the product over them. Infinite
// scores stay. Scores must not be negative. In place. GraphKV, Li et al. 2025.
struct Diversify {
  KvRows kv;
  const std::int32_t* sources = nullptr;  // [num_rows], at most the row's length
  bool product = false;
  float* scores = nullptr;  // [kv.total()]

  // A cosine per token and source; keys are read once, those of the sources once more.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "diversify", .rows = kv.num_rows, .tokens = kv.total(), .outputs = kv.total(), .bytes = 8 * kv.total()};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = kv.len[r], from = sources[r], d = kv.head_dim;
      c.bytes += (n + from) * d * kv.kv_bytes;
      c.flops += 2 * n * (from + 1) * d;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) { visit(kv), visit(sources, kv.num_rows); }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return 3LL * kv.len[row]; }  // 1 / |k|, marks and list of the sources

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int32_t n = kv.len[row];
    float *const of_row = scores + kv.first[row], *const scale = team.room();
    auto *const is_source = reinterpret_cast<std::int32_t*>(scale + n), *const list = is_source + n;
    team.each(n, [&](std::int64_t i) {
      const KvVector<Team> key = key_of(team, kv, row, i);
      const float norm = std::sqrt(team.dot(key, key, kv.head_dim));
      scale[i] = 1.0F / (norm < 1e-12F ? 1e-12F : norm);
      is_source[i] = 0;
    });
    team.best(
        n, sources[row], [&](std::int32_t i) { return of_row[i]; }, [&](std::int32_t i) { is_source[i] = 1; });
    const std::int64_t count = team.pack(
        n, [&](std::int64_t i) { return is_source[i] != 0; },
        [&](std::int64_t k, std::int64_t i) { list[k] = static_cast<std::int32_t>(i); });
    team.each(n, [&](std::int64_t i) {
      if (!std::isinf(of_row[i])) of_row[i] *= stays(team, row, i, scale, list, count);
    });
  }

 private:
  template <class Team>
  struct Unit {
    KvVector<Team> key;
    float scale;
    KVLAB_BODY float operator[](std::int64_t c) const { return key[c] * scale; }
  };
  template <class Team>
  [[nodiscard]] KVLAB_BODY float stays(const Team& team, std::int64_t row, std::int64_t i, const float* scale, const std::int32_t* list,
                                       std::int64_t count) const {
    const auto unit = [&](std::int64_t token) { return Unit<Team>{key_of(team, kv, row, token), scale[token]}; };
    float share = 1.0F;
    for (std::int64_t k = 0; k < count; ++k) {
      if (list[k] == i) continue;
      const float rest = 1.0F - team.dot(unit(i), unit(list[k]), kv.head_dim);
      const float inside = rest < 0.0F ? 0.0F : rest > 1.0F ? 1.0F : rest;
      share = product ? share * inside : inside < share ? inside : share;
    }
    return share;
  }
};
KVLAB_ROW_OP(Diversify)

}  // namespace kvlab
