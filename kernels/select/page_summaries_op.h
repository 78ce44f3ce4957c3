#pragma once

#include <algorithm>

#include "base/ceil_div.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Summaries of the keys of windows [j * stride_tokens, j * stride_tokens + span_tokens), j < ceil(len / stride_tokens). Folds in tokens
// [from[r], len[r]); summaries of begun windows replace older keys, which may be encoded.
//   kMeans   mean key. Chunks (TriForce, Sun et al. 2024) if stride = span, else InfLLM v2's kernels (MiniCPM4, 2025)
//   kBounds  minimum and maximum of each channel; stride = span. Quest, Tang et al. 2024, algorithm 1
//   kNodes   kBounds of `len` bounds in `nodes`; from[r] a multiple of span: a level of a tree (LeoAM, Sun et al. 2025)
//   kValues  sum of values
struct PageSummaries {
  enum class Kind : std::uint8_t { kMeans, kBounds, kNodes, kValues };
  static constexpr std::int32_t kWholeRow = 1 << 30;  // a stride and span
  KvRows kv;
  std::int32_t span_tokens = 0, stride_tokens = 0;  // stride_tokens <= span_tokens
  const std::int32_t* from = nullptr;               // [num_rows]
  float* const* out = nullptr;                      // [num_rows] -> [windows, head_dim], or [windows, 2, head_dim]: minimum, maximum
  Kind kind = Kind::kMeans;
  const float* const* nodes = nullptr;  // [num_rows] -> [len, 2, head_dim] of kNodes

  [[nodiscard]] KVLAB_BOTH std::int32_t windows(std::int64_t row) const { return (kv.len[row] + stride_tokens - 1) / stride_tokens; }
  [[nodiscard]] KVLAB_BOTH std::int32_t first_window(std::int64_t row) const {
    if (from[row] >= kv.len[row]) return windows(row);
    return from[row] < span_tokens ? 0 : (from[row] - span_tokens) / stride_tokens + 1;
  }
  // Begun before this step; they come first.
  [[nodiscard]] std::int32_t begun_windows(std::int64_t row) const {
    return std::max(0, std::min(windows(row), ceil_div(from[row], stride_tokens)) - first_window(row));
  }

  [[nodiscard]] OpCall cost() const {
    const bool nodes_in = kind == Kind::kNodes, bounds = nodes_in || kind == Kind::kBounds, sums = kind == Kind::kValues;
    const std::int64_t number = sums ? 8 : (bounds ? 2 : 1) * kv.kv_bytes;  // bytes of a summary's channel
    OpCall c{.op = nodes_in ? "merge_bounds" : bounds ? "page_bounds" : sums ? "value_sums" : "page_means", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int64_t begin = first_window(r), end = windows(r), n = kv.len[r] - from[r];
      const std::int64_t begun = sums ? 0 : begun_windows(r);
      if (begin >= end) continue;
      c.tokens += n;
      c.outputs += end - begin;
      c.bytes += ((nodes_in ? 2 : 1) * n * kv.kv_bytes + number * (end - begin + begun)) * kv.head_dim;
      c.flops += (bounds ? 2 * n : begun + added_tokens(r)) * kv.head_dim;
    }
    return c;
  }
  static constexpr std::int64_t kPart = 16;  // windows of a row
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const {
    std::int64_t most = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) most = std::max<std::int64_t>(most, windows(r) - first_window(r));
    return kv.num_rows * ceil_div(most, kPart);
  }
  void shapes(auto&& visit) { visit(from, kv.num_rows), visit(out, kv.num_rows), visit(nodes, kv.num_rows), visit(kv); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t part) const {
    const std::int64_t row = part % kv.num_rows, begin = first_window(row) + part / kv.num_rows * kPart, rest = windows(row) - begin;
    if (rest <= 0) return;
    each_channels(team, rest < kPart ? rest : kPart, kv.head_dim, [&](std::int64_t j, std::int64_t c, auto wide) {
      if (kind == Kind::kMeans || kind == Kind::kValues)
        write_sums<wide.value>(team, row, begin + j, c);
      else
        write_bounds<wide.value>(team, row, begin + j, c);
    });
  }

 private:
  // Once per window that gets the token.
  [[nodiscard]] std::int64_t added_tokens(std::int64_t row) const {
    std::int64_t added = 0;
    for (std::int64_t j = first_window(row); j < windows(row); ++j) added += last_token(row, j) - first_token(row, j);
    return added;
  }
  // New in a window.
  [[nodiscard]] KVLAB_BOTH std::int64_t first_token(std::int64_t row, std::int64_t window) const {
    return window * stride_tokens < from[row] ? from[row] : window * stride_tokens;
  }
  [[nodiscard]] KVLAB_BOTH std::int64_t last_token(std::int64_t row, std::int64_t window) const {
    const std::int64_t end = window * stride_tokens + span_tokens;
    return end < kv.len[row] ? end : kv.len[row];
  }

  // Or the minimum of node i.
  template <class Team>
  [[nodiscard]] KVLAB_BODY KvVector<Team> vector(const Team& team, std::int64_t row, std::int64_t i) const {
    if (kind == Kind::kNodes) return {nodes[row], ElementType::kF32, i * 2 * kv.head_dim};
    return kind == Kind::kValues ? value_of(team, kv, row, i) : key_of(team, kv, row, i);
  }
  // add(vector) for the window's new vectors, from channel c.
  template <class Team, class Add>
  KVLAB_BODY void each_vector(const Team& team, std::int64_t row, std::int64_t window, std::int64_t c, Add&& add) const {
    const auto end = static_cast<std::int32_t>(last_token(row, window));
    const std::int64_t step = (kind == Kind::kNodes ? 2LL : 1LL) * kv.head_dim;
    for (auto i = static_cast<std::int32_t>(first_token(row, window)); i < end;) {
      const std::int32_t rest = kv.page_tokens - i % kv.page_tokens, stop = end - i < rest ? end : i + rest;
      for (KvVector<Team> x = vector(team, row, i) + c; i < stop; ++i, x = x + step) add(x);
    }
  }

  template <int kWide, class Team>
  KVLAB_BODY void write_sums(const Team& team, std::int64_t row, std::int64_t window, std::int64_t c) const {
    const std::int64_t begin = window * stride_tokens, older = first_token(row, window) - begin;
    const auto factor = [&](std::int64_t tokens) { return kind == Kind::kValues ? 1.0F : static_cast<float>(tokens); };
    float* const to = out[row] + window * kv.head_dim + c;
    float sum[kWide] = {};
    for (int j = 0; j < kWide && older > 0; ++j) sum[j] = to[j] * factor(older);
    each_vector(team, row, window, c, [&](const auto& x) {
      for (int j = 0; j < kWide; ++j) sum[j] += x[j];
    });
    for (int j = 0; j < kWide; ++j) to[j] = sum[j] / factor(last_token(row, window) - begin);
  }

  template <int kWide, class Team>
  KVLAB_BODY void write_bounds(const Team& team, std::int64_t row, std::int64_t window, std::int64_t c) const {
    const bool has_older = first_token(row, window) > window * stride_tokens;
    float *const low = out[row] + window * 2 * kv.head_dim + c, *const high = low + kv.head_dim;
    const std::int64_t to_high = kind == Kind::kNodes ? kv.head_dim : 0;
    const auto first = vector(team, row, first_token(row, window)) + c;
    float least[kWide], most[kWide];
    for (int j = 0; j < kWide; ++j) least[j] = has_older ? low[j] : first[j], most[j] = has_older ? high[j] : first[to_high + j];
    each_vector(team, row, window, c, [&](const auto& x) {
      for (int j = 0; j < kWide; ++j) {
        const float x_low = x[j], x_high = x[to_high + j];
        least[j] = x_low < least[j] ? x_low : least[j], most[j] = most[j] < x_high ? x_high : most[j];
      }
    });
    for (int j = 0; j < kWide; ++j) low[j] = least[j], high[j] = most[j];
  }
};
KVLAB_ROW_OP(PageSummaries)

}  // namespace kvlab
