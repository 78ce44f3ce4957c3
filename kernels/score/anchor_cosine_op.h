#pragma once

#include <cmath>

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Likeness of keys to an anchor: the mean of the normalised keys of tokens [begin[r], end[r]).
//   out[i] = factor * cos(k_i, anchor)                  (cosine)
//   out[i] = factor * mean over the anchor's tokens j of cos(k_i, k_j) = factor * k_i . anchor / |k_i|
// Norms are taken as at least 1e-8. Without anchor token: 0.
struct AnchorCosine {
  KvRows kv;
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_rows]
  bool cosine = true;
  float factor = 1.0F;
  float* out = nullptr;  // [kv.total()]

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total(), d = kv.head_dim;
    std::int64_t anchors = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) anchors += end[r] - begin[r];
    return {.op = "anchor_cosine",
            .rows = kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = (n + anchors) * d * kv.kv_bytes + 4 * n,
            .flops = 4 * (n + anchors) * d};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) { visit(kv), visit(begin, kv.num_rows), visit(end, kv.num_rows); }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return (2 * kParts + 1) * std::int64_t{kv.head_dim} + kv.len[row]; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t d = kv.head_dim;
    float *const anchor = team.room() + 2 * kParts * d, *const norm = anchor + d;
    const auto key = [&](std::int64_t i) { return key_of(team, kv, row, i); };
    const auto square = [](const auto& x, std::int64_t c) { return x[c] * x[c]; };
    team.sums(kv.len[row], d, key, square, [&](std::int64_t i, float x) { norm[i] = at_least(std::sqrt(x)); });
    constexpr std::int64_t kUsed = Team::kOnDevice ? kParts : 1;
    add_keys(team, row, norm, kUsed);
    const double count = end[row] - begin[row] < 1 ? 1 : end[row] - begin[row];
    team.each(d, [&](std::int64_t c) {
      double sum = 0;
      for (std::int64_t p = 0; p < kUsed; ++p) sum += team.doubles()[p * d + c];
      anchor[c] = static_cast<float>(sum / count);
    });
    const float scale = factor / (cosine ? at_least(std::sqrt(dot_in_lanes(anchor, anchor, d))) : 1.0F);
    team.dots(kv.len[row], d, anchor, key, [&](std::int64_t i, float x) { out[kv.first[row] + i] = scale * x / norm[i]; });
  }

 private:
  static constexpr std::int64_t kParts = 32, kWide = 16;  // sums at a time on a device, channels of each

  [[nodiscard]] static KVLAB_BODY float at_least(float norm) { return norm < 1e-8F ? 1e-8F : norm; }
  // doubles() becomes [parts, head_dim]: sums over every parts-th anchor token.
  template <class Team>
  KVLAB_BODY void add_keys(const Team& team, std::int64_t row, const float* norm, std::int64_t parts) const {
    const std::int64_t d = kv.head_dim, pieces = (d + kWide - 1) / kWide;
    team.each(parts * pieces, [&](std::int64_t at) {
      const std::int64_t c0 = at % pieces * kWide, width = d - c0 < kWide ? d - c0 : kWide;
      double sum[kWide] = {};
      for (std::int64_t i = begin[row] + at / pieces; i < end[row]; i += parts) {
        const KvVector<Team> key = key_of(team, kv, row, i) + c0;
        const float scale = 1.0F / norm[i];
        for (std::int64_t c = 0; c < kWide; ++c)
          if (c < width) sum[c] += static_cast<double>(key[c] * scale);
      }
      for (std::int64_t c = 0; c < width; ++c) team.doubles()[at / pieces * d + c0 + c] = sum[c];
    });
  }
};
KVLAB_ROW_OP(AnchorCosine)

}  // namespace kvlab
