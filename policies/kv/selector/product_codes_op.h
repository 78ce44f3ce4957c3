#pragma once

#include "base/ceil_div.h"
#include "kernels/rows/elements.h"
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
  float* centers;
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
  // To the mean of the keys i < n with number[i] == c.
  template <class Key>
  KVLAB_BODY void move(std::int64_t c, std::int64_t n, Key&& key, const std::int32_t* number) const {
    float* const center = centers + c * width;
    std::int32_t members = 0;
    for (std::int64_t i = 0; i < n; ++i) members += number[i] == c ? 1 : 0;
    if (members == 0) return;
    for (std::int64_t j = 0; j < width; ++j) center[j] = 0.0F;
    for (std::int64_t i = 0; i < n; ++i) {
      if (number[i] != c) continue;
      const auto x = key(i);
      for (std::int64_t j = 0; j < width; ++j) center[j] += x[j];
    }
    for (std::int64_t j = 0; j < width; ++j) center[j] /= static_cast<float>(members);
  }
};

// Tokens [from[r], to[r]); ties go to the lower center.
//   kTrain   centers by k-means: Lloyd's rounds from tokens spread evenly over the range. A center that lost its tokens stays
//   kAssign  codes
struct ProductCodes {
  enum class Kind : std::uint8_t { kTrain, kAssign };
  KvRows kv;
  ProductShape shape;
  Kind kind = Kind::kAssign;
  const std::int32_t *from = nullptr, *to = nullptr;  // [kv.num_rows] from >= to: the row is unchanged
  const std::int32_t* centers = nullptr;              // [kv.num_rows] of a part; kTrain: at most to - from
  float* const* center = nullptr;                     // [kv.num_rows] -> [parts, centers, head_dim / parts]; kTrain: out
  std::int32_t* const* code = nullptr;                // kAssign: [kv.num_rows] -> [to, parts] out
  std::int32_t rounds = 1;                            // 1 unless kTrain

  [[nodiscard]] OpCall cost() const {
    const bool trains = kind == Kind::kTrain;
    OpCall c{.op = trains ? "train_product" : "assign_product", .rows = kv.num_rows};
    const std::int64_t d = kv.head_dim;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t n = tokens(r);
      if (n == 0) continue;
      c.tokens += n;
      c.outputs += trains ? centers[r] : n;
      c.bytes += (rounds * n + centers[r]) * d * kv.kv_bytes + (trains ? 0 : n * shape.code_bytes());
      c.flops += 2 * rounds * n * centers[r] * d;
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return std::int64_t{kv.num_rows} * shape.parts; }
  // Norms of the centers; kTrain: the tokens' centers.
  [[nodiscard]] std::int64_t room(std::int64_t at) const {
    return centers[at / shape.parts] + (kind == Kind::kTrain ? tokens(at / shape.parts) : 0);
  }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_rows;
    visit(from, n), visit(to, n), visit(centers, n), visit(center, n), visit(code, n), visit(kv);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t at) const {
    const std::int64_t row = at / shape.parts, part = at % shape.parts, n = tokens(row), count = centers[row],
                       width = kv.head_dim / shape.parts;
    if (n == 0) return;
    const bool trains = kind == Kind::kTrain;
    const CentersOfPart now{center[row] + part * count * width, count, width};
    float* const half_norm = team.room();
    std::int32_t* const number =
        trains ? reinterpret_cast<std::int32_t*>(half_norm + count) : code[row] + from[row] * std::int64_t{shape.parts} + part;
    const std::int64_t step = trains ? 1 : shape.parts;
    const auto key = [&](std::int64_t i) { return key_of(team, kv, row, from[row] + i) + part * width; };
    if (trains)
      team.each(count, [&](std::int64_t c) {
        for (std::int64_t j = 0; j < width; ++j) now.centers[c * width + j] = key(c * n / count)[j];
      });
    for (std::int32_t round = 0; round < rounds; ++round) {
      now.write_norms(team, half_norm);
      team.each(n, [&](std::int64_t i) { number[i * step] = now.nearest(team, key(i), half_norm); });
      if (trains) team.each(count, [&](std::int64_t c) { now.move(c, n, key, number); });
    }
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t tokens(std::int64_t row) const { return to[row] > from[row] ? to[row] - from[row] : 0; }
};
KVLAB_ROW_OP(ProductCodes)

}  // namespace kvlab
