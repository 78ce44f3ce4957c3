#pragma once

#include "base/ceil_div.h"
#include "kernels/rows/kv_vector.h"
#include "kernels/rows/row_op.h"

// Product quantization of keys (Jegou, Douze and Schmid 2011): each part of a key's channels is the number of its nearest center. PQCache,
// Zhang et al. 2024, arXiv:2407.12820.
namespace kvlab {

struct ProductShape {
  std::int32_t parts = 2;
  std::int32_t centers = 64;  // per part, at most; a row of fewer tokens has one for each
  [[nodiscard]] std::int32_t code_bytes() const {
    std::int32_t bits = 1;
    while (1 << bits < centers) ++bits;
    return ceil_div(parts * bits, 8);
  }
};

// [count, width] of a part of a row.
struct CentersOfPart {
  const float* centers;
  std::int64_t count, width;

  // [count]: half of each center's squared norm.
  template <class Team>
  KVLAB_BODY void write_norms(const Team& team, float* half_norm) const {
    team.each(count, [&](std::int64_t c) { half_norm[c] = 0.5F * team.dot(centers + c * width, centers + c * width, width); });
  }
  template <class Team, class Vector>
  [[nodiscard]] KVLAB_BODY std::int32_t nearest(const Team& team, const Vector& x, const float* half_norm) const {
    std::int32_t best = 0;
    float most = team.dot(x, centers, width) - half_norm[0];
    for (std::int32_t c = 1; c < count; ++c) {
      const float now = team.dot(x, centers + c * width, width) - half_norm[c];
      if (now > most) best = c, most = now;
    }
    return best;
  }
};

// k-means: Lloyd's rounds from tokens spread evenly over [begin[r], end[r]). A center that lost its tokens stays; ties go to the lower one.
struct TrainProduct {
  KvRows kv;
  ProductShape shape;
  std::int32_t rounds = 10;
  const std::int32_t *begin = nullptr, *end = nullptr;  // [kv.num_rows] begin >= end: the row is unchanged
  const std::int32_t* centers = nullptr;                // [kv.num_rows] of a part, at most end - begin
  float* const* center = nullptr;                       // [kv.num_rows] -> [parts, centers, head_dim / parts] out

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "train_product", .rows = kv.num_rows};
    const std::int64_t d = kv.head_dim;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = end[r] - begin[r];
      if (n <= 0) continue;
      c.tokens += n;
      c.outputs += centers[r];
      c.bytes += (rounds * n + centers[r]) * d * kv.kv_bytes;
      c.flops += 2 * rounds * n * centers[r] * d;
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return std::int64_t{kv.num_rows} * shape.parts; }
  [[nodiscard]] std::int64_t room(std::int64_t at) const { return centers[at / shape.parts] + tokens(at / shape.parts); }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_rows;
    visit(begin, n), visit(end, n), visit(centers, n), visit(center, n), visit(kv);
  }

  [[nodiscard]] KVLAB_BOTH std::int64_t tokens(std::int64_t row) const { return end[row] > begin[row] ? end[row] - begin[row] : 0; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t at) const {
    const std::int64_t row = at / shape.parts, part = at % shape.parts, n = tokens(row), count = centers[row],
                       width = kv.head_dim / shape.parts;
    if (n == 0) return;
    float *const mine = center[row] + part * count * width, *const half_norm = team.room();
    auto* const number = reinterpret_cast<std::int32_t*>(half_norm + count);
    const auto key = [&](std::int64_t i) { return key_of(team, kv, row, begin[row] + i) + part * width; };
    const CentersOfPart now{mine, count, width};
    team.each(count, [&](std::int64_t c) {
      for (std::int64_t j = 0; j < width; ++j) mine[c * width + j] = key(c * n / count)[j];
    });
    for (std::int32_t round = 0; round < rounds; ++round) {
      now.write_norms(team, half_norm);
      team.each(n, [&](std::int64_t i) { number[i] = now.nearest(team, key(i), half_norm); });
      team.each(count, [&](std::int64_t c) { move(mine + c * width, width, n, key, [&](std::int64_t i) { return number[i] == c; }); });
    }
  }

 private:
  template <class Key, class Has>
  KVLAB_BODY static void move(float* center, std::int64_t width, std::int64_t n, Key&& key, Has&& has) {
    std::int32_t members = 0;
    for (std::int64_t i = 0; i < n; ++i) members += has(i) ? 1 : 0;
    if (members == 0) return;
    for (std::int64_t j = 0; j < width; ++j) center[j] = 0.0F;
    for (std::int64_t i = 0; i < n; ++i) {
      if (!has(i)) continue;
      const auto x = key(i);
      for (std::int64_t j = 0; j < width; ++j) center[j] += x[j];
    }
    for (std::int64_t j = 0; j < width; ++j) center[j] /= static_cast<float>(members);
  }
};
KVLAB_ROW_OP(TrainProduct)

// Tokens [from[r], to[r]).
struct AssignProduct {
  KvRows kv;
  ProductShape shape;
  const std::int32_t *from = nullptr, *to = nullptr;  // [kv.num_rows]
  const std::int32_t* centers = nullptr;              // [kv.num_rows]
  const float* const* center = nullptr;
  std::int32_t* const* code = nullptr;  // [kv.num_rows] -> [to, parts]

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "assign_product", .rows = kv.num_rows};
    const std::int64_t d = kv.head_dim;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = to[r] - from[r];
      if (n <= 0) continue;
      c.tokens += n;
      c.outputs += n;
      c.bytes += (n + centers[r]) * d * kv.kv_bytes + n * shape.code_bytes();
      c.flops += 2 * n * centers[r] * d;
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return std::int64_t{kv.num_rows} * shape.parts; }
  [[nodiscard]] std::int64_t room(std::int64_t at) const { return centers[at / shape.parts]; }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_rows;
    visit(from, n), visit(to, n), visit(centers, n), visit(center, n), visit(code, n), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t at) const {
    const std::int64_t row = at / shape.parts, part = at % shape.parts, width = kv.head_dim / shape.parts;
    if (from[row] >= to[row]) return;
    const CentersOfPart now{center[row] + part * centers[row] * width, centers[row], width};
    now.write_norms(team, team.room());
    team.each(to[row] - from[row], [&](std::int64_t i) {
      const std::int64_t token = from[row] + i;
      code[row][token * shape.parts + part] = now.nearest(team, key_of(team, kv, row, token) + part * width, team.room());
    });
  }
};
KVLAB_ROW_OP(AssignProduct)

}  // namespace kvlab
