#pragma once

#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// One set for all KV heads of a sequence: the `important[s]` tokens of largest mean score, and `representatives[s]` of the others. A
// token's signature has one bit per head: it is among the head's `important[s]` best. The others are sorted by the signature's Hamming
// distance to an anchor (ties by index) and taken evenly spaced. Scores become 2, 1 (representative) or 0; infinite ones stay. Rows of a
// sequence have the same length. KVCrush, Jha et al. 2025.
struct Representatives {
  enum class Anchor : std::uint8_t { kMajority, kZeros, kOnes, kAlternating, kRandom };
  KvRows kv;
  const std::int32_t *important = nullptr, *representatives = nullptr;  // [num_sequences], together at most the row's length
  Anchor anchor = Anchor::kMajority;
  std::uint64_t seed = 0;
  float* scores = nullptr;  // [kv.total()]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    return {.op = "representatives", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = 12 * n + n / 4, .flops = 6 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_sequences(); }
  void shapes(auto&& visit) {
    const std::int64_t sequences = kv.num_sequences();
    visit(kv), visit(important, sequences), visit(representatives, sequences);
  }
  [[nodiscard]] std::int64_t room(std::int64_t sequence) const { return 5LL * kv.len[sequence * kv.kv_heads]; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t row0 = s * kv.kv_heads, n = kv.len[row0];
    float *const mean = team.room(), *const rank = mean + n;
    auto* const is_best = reinterpret_cast<std::int32_t*>(rank + n);
    std::int32_t *const distance = is_best + n, *const order = distance + n;
    team.each(n, [&](std::int64_t i) { mean[i] = rank[i] = 0, distance[i] = 0; });
    for (std::int64_t h = 0; h < kv.kv_heads; ++h) {
      const float* const of_head = scores + kv.first[row0 + h];
      team.each(n, [&](std::int64_t i) { is_best[i] = 0, mean[i] += of_head[i] / static_cast<float>(kv.kv_heads); });
      choose(team, s, of_head, [&](std::int64_t i) { is_best[i] = 1; });
      const std::int32_t ones = team.template sum<std::int32_t>(n, [&](std::int64_t i) { return is_best[i]; });
      const std::int32_t wanted = anchor_bit(s, h, 2LL * ones > n);
      team.each(n, [&](std::int64_t i) { distance[i] += is_best[i] != wanted ? 1 : 0; });
    }
    choose(team, s, mean, [&](std::int64_t i) { rank[i] = 2.0F; });
    std::int64_t others = 0;
    for (std::int32_t d = 0; d <= kv.kv_heads; ++d)
      others += team.pack(
          n, [&](std::int64_t i) { return rank[i] == 0 && distance[i] == d; },
          [&](std::int64_t k, std::int64_t i) { order[others + k] = static_cast<std::int32_t>(i); });
    const std::int64_t count = representatives[s];
    team.each(count, [&](std::int64_t j) { rank[order[(2 * j + 1) * others / (2 * count)]] = 1.0F; });
    team.each(n * kv.kv_heads, [&](std::int64_t at) {
      float& score = scores[kv.first[row0 + at / n] + at % n];
      if (!std::isinf(score)) score = rank[at % n];
    });
  }

 private:
  template <class Team, class Put>
  KVLAB_BODY void choose(const Team& team, std::int64_t s, const float* x, const Put& put) const {
    team.best(
        kv.len[s * kv.kv_heads], important[s], [&](std::int32_t i) { return x[i]; }, put);
  }
  [[nodiscard]] KVLAB_BODY std::int32_t anchor_bit(std::int64_t s, std::int64_t head, bool majority) const {
    switch (anchor) {
      case Anchor::kMajority:
        return majority ? 1 : 0;
      case Anchor::kZeros:
        return 0;
      case Anchor::kOnes:
        return 1;
      case Anchor::kAlternating:
        return head % 2 == 1 ? 1 : 0;
      case Anchor::kRandom:  // Draw::below(2)
        break;
    }
    return static_cast<std::int32_t>(
        bits_of_draw(seed, Purpose::kPolicy, static_cast<std::uint64_t>(s), static_cast<std::uint64_t>(head)) >> 63);
  }
};
KVLAB_ROW_OP(Representatives)

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
