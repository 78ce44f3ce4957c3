#pragma once

#include <bit>
#include <cmath>

#include "base/ceil_div.h"
#include "kernels/kv_rows.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Bytes of DeltaCode with ceil(log2(levels)) bits per difference: a bound without data.
inline std::int64_t delta_code_bound(std::int64_t tokens, std::int64_t head_dim, std::int32_t group_tokens, std::int32_t levels) {
  const std::int64_t anchors = ceil_div(tokens, group_tokens);
  const auto bits = static_cast<std::int64_t>(std::bit_width(static_cast<std::uint32_t>(levels - 1)));
  return 2 * tokens + anchors * head_dim + ((tokens - anchors) * head_dim * bits + 7) / 8;
}

// CacheGen's transfer codec (Liu et al. 2023, arXiv:2310.07240, section 5.2). The first of each group of listed tokens, its anchor, is
// quantized to 255 levels, the others as differences to the decoded anchor to levels - 1, both uniform and symmetric with one fp16 scale of
// max |x| per token. The listed vectors become the decoded numbers; bytes[r] grows by what row r takes: scales, anchors at a byte per
// number, and the differences' empirical entropy with one frequency table per (row, channel). An arithmetic coder comes within a few bytes
// of it; both ends know the tables.
struct DeltaCode {
  ListedTokens tokens;
  std::int32_t group_tokens = 10, levels = 16;  // levels: at most 256
  std::int32_t* bytes = nullptr;                // [num_rows] in and out, in CPU memory; not written where only shapes are known

  // Vectors are read, the bound is written; five operations per element, and five in the coder.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = tokens.total(), d = tokens.kv.head_dim;
    std::int64_t bound = 0;
    for (std::int32_t r = 0; r < tokens.kv.num_rows; ++r) bound += delta_code_bound(tokens.entries(r), d, group_tokens, levels);
    return {.op = "delta_code",
            .rows = tokens.kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = tokens.dense_bytes() + tokens.list_bytes() + bound,
            .flops = 10 * n * d};
  }
  [[nodiscard]] std::int64_t rows() const { return tokens.kv.num_rows; }
  // Decoded anchors, counts of symbols per channel, and a symbol in a byte for each number.
  [[nodiscard]] std::int64_t room(std::int64_t row) const {
    const std::int64_t n = tokens.entries(row), d = tokens.kv.head_dim;
    return ceil_div(n, group_tokens) * d + d * levels + ceil_div(n * d, 4);
  }
  void shapes(auto&& visit) { visit(tokens.kv), visit(tokens.first, tokens.kv.num_rows + 1); }
  void results(auto&& visit) { visit(bytes, tokens.kv.num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t d = tokens.kv.head_dim, most = tokens.entries(row), first = tokens.first[row];
    if (most == 0) return;
    const std::int64_t n = team.template sum<std::int32_t>(most, [&](std::int64_t i) { return tokens.index[first + i] < 0 ? 0 : 1; });
    const std::int64_t anchors = (n + group_tokens - 1) / group_tokens;
    float* const anchor = team.room();
    auto* const counts = reinterpret_cast<std::int32_t*>(anchor + (most + group_tokens - 1) / group_tokens * d);
    auto* const symbols = reinterpret_cast<std::uint8_t*>(counts + d * levels);
    team.each(anchors, [&](std::int64_t g) { code_anchor(row, g * group_tokens, anchor + g * d); });
    team.each(n, [&](std::int64_t i) {
      if (i % group_tokens != 0) code_difference(row, i, anchor + i / group_tokens * d, symbols + i * d);
    });
    const double bits = team.template sum<double>(d, [&](std::int64_t c) {
      std::int32_t* const of_channel = counts + c * levels;
      for (std::int32_t k = 0; k < levels; ++k) of_channel[k] = 0;
      for (std::int64_t i = 0; i < n; ++i)
        if (i % group_tokens != 0) ++of_channel[symbols[i * d + c]];
      return entropy_bits(of_channel);
    });
    team.once([&] { bytes[row] += static_cast<std::int32_t>(2 * n + anchors * d + static_cast<std::int64_t>(std::ceil(bits / 8))); });
  }

 private:
  static constexpr std::int32_t kAnchorLevels = 256;

  // put(c, code, scale) for x(c), c in [0, head_dim): symmetric codes to `most`.
  template <class X, class Put>
  KVLAB_BODY void code_token(std::int32_t most, X&& x, Put&& put) const {
    float largest = 0.0F;
    for (std::int32_t c = 0; c < tokens.kv.head_dim; ++c) {
      const float size = std::fabs(x(c));
      largest = largest < size ? size : largest;
    }
    const auto limit = static_cast<float>(most);
    const float scale = to_float(stored_half(largest)) / limit;
    for (std::int32_t c = 0; c < tokens.kv.head_dim; ++c) {
      const float number = x(c), code = scale > 0.0F && !std::isnan(number) ? std::nearbyint(number / scale) : 0.0F;
      put(c, code < -limit ? -limit : limit < code ? limit : code, scale);
    }
  }
  [[nodiscard]] KVLAB_BODY std::int64_t element(std::int64_t row, std::int64_t i) const {
    return tokens.kv.slot(static_cast<std::int32_t>(row), tokens.index[tokens.first[row] + i]) * tokens.kv.head_dim;
  }
  [[nodiscard]] KVLAB_BODY void* data() const { return tokens.values ? tokens.kv.v : tokens.kv.k; }

  // The anchor stays in float32, whatever it is stored as.
  KVLAB_BODY void code_anchor(std::int64_t row, std::int64_t i, float* anchor) const {
    const std::int64_t at = element(row, i);
    const ElementType type = tokens.kv.type;
    code_token(
        kAnchorLevels / 2 - 1, [&](std::int64_t c) { return element_at(data(), at + c, type); },
        [&](std::int64_t c, float code, float scale) {
          anchor[c] = code * scale;
          set_element(data(), at + c, type, anchor[c]);
        });
  }
  KVLAB_BODY void code_difference(std::int64_t row, std::int64_t i, const float* anchor, std::uint8_t* symbol) const {
    const std::int64_t at = element(row, i);
    const ElementType type = tokens.kv.type;
    const std::int32_t most = levels / 2 - 1;
    code_token(
        most, [&](std::int64_t c) { return element_at(data(), at + c, type) - anchor[c]; },
        [&](std::int64_t c, float code, float scale) {
          symbol[c] = static_cast<std::uint8_t>(code + static_cast<float>(most));
          set_element(data(), at + c, type, anchor[c] + code * scale);
        });
  }
  // Of symbols with these counts, coded at their own frequencies.
  [[nodiscard]] KVLAB_BODY double entropy_bits(const std::int32_t* counts) const {
    double total = 0, bits = 0;
    for (std::int32_t k = 0; k < levels; ++k) total += counts[k];
    for (std::int32_t k = 0; k < levels; ++k)
      if (counts[k] > 0) bits -= counts[k] * std::log2(counts[k] / total);
    return bits;
  }
};
KVLAB_ROW_OP(DeltaCode)

}  // namespace kvlab
