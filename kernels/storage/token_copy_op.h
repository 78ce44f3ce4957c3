#pragma once

#include "base/ceil_div.h"
#include "kernels/kv_rows.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Copies tokens between pages and consecutive memory, in list order. kVectors and kWords: bit for bit, not logged.
//   kVectors  K or V, [total(), width()] of the pages' type: all channels, or a row's mask (kIntoPages: others 0). Skips entries of -1
//   kWords    positions and statistics of all tokens: [1 + num_words, len] per row
//   kDropped  from pages: K before V, [total(), 2, head_dim] of the pages' type, and positions [total()]
//   kFloats   from pages: K and V of all tokens, [len, num_rows, head_dim] each in float32; equal lengths. Not logged by a policy
//   kNumbers  into the pages' positions: the token's number in its row
struct TokenCopy {
  enum class Kind : std::uint8_t { kVectors, kWords, kDropped, kFloats, kNumbers };
  enum class Way : std::uint8_t { kFromPages, kIntoPages };
  static constexpr std::int64_t kPart = 256;  // entries of a row
  static constexpr bool kInParallel = true;
  ListedTokens tokens;  // all tokens: {kv, kv.first}, without an index
  Kind kind = Kind::kVectors;
  Way way = Way::kFromPages;
  void* stored = nullptr;                  // vectors; K of kFloats
  const std::uint8_t* channels = nullptr;  // [num_rows, (head_dim + 7) / 8] bit c % 8 of byte c / 8; null: all
  std::int32_t keep = 0;                   // bits per mask; with shapes only 0: all channels
  float* v = nullptr;                      // kFloats
  std::uint32_t* words = nullptr;          // kWords; positions of kDropped

  [[nodiscard]] KVLAB_BOTH std::int32_t width() const { return channels == nullptr ? tokens.kv.head_dim : keep; }
  [[nodiscard]] OpCall cost() const {
    const KvRows& kv = tokens.kv;
    const std::int64_t n = tokens.total(), d = kv.head_dim, each = keep > 0 ? keep : d, in_pages = way == Way::kIntoPages ? d : each;
    OpCall c{.op = "token_copy", .rows = kv.num_rows, .tokens = n, .outputs = n};
    if (kind == Kind::kVectors) c.bytes = tokens.list_bytes() + n * (each + in_pages) * kv.kv_bytes;
    if (kind == Kind::kWords) c.bytes = 2 * 4 * (std::int64_t{1} + kv.num_words) * n;
    if (kind == Kind::kDropped) c.op = "pack_dropped", c.bytes = n * (4 * d * kv.kv_bytes + 12);
    if (kind == Kind::kNumbers) c.op = "local_positions", c.bytes = 4 * n;
    if (kind == Kind::kFloats) c.op = "gather_rows", c.bytes = 4 * n * d * kv.kv_bytes;
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return tokens.kv.num_rows * ceil_div<std::int64_t>(tokens.most_entries(), kPart); }
  void shapes(auto&& visit) { visit(tokens.kv), visit(tokens.first, tokens.kv.num_rows + 1); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t part) const {
    const auto row = static_cast<std::int32_t>(part % tokens.kv.num_rows);
    const std::int64_t begin = part / tokens.kv.num_rows * kPart, rest = tokens.entries(row) - begin;
    if (rest > 0) team.each(rest < kPart ? rest : kPart, [&](std::int64_t i) { copy(row, begin + i); });
  }

 private:
  KVLAB_BODY void copy(std::int32_t row, std::int64_t i) const {
    const KvRows& kv = tokens.kv;
    const std::int64_t at = tokens.first[row] + i, d = kv.head_dim;
    const std::int32_t token = tokens.index == nullptr ? static_cast<std::int32_t>(i) : tokens.index[at];
    if (token < 0) return;
    const std::int64_t slot = kv.slot(row, token);
    if (kind == Kind::kNumbers) kv.position[slot] = static_cast<std::int32_t>(i);
    if (kind == Kind::kWords) copy_words(row, i, slot, kv.num_words);
    if (kind == Kind::kVectors) copy_channels(row, tokens.values ? kv.v : kv.k, slot * d, at * width());
    if (kind == Kind::kDropped) {
      copy_words(row, i, slot, 0);
      copy_channels(row, kv.k, slot * d, at * 2 * d);
      copy_channels(row, kv.v, slot * d, (at * 2 + 1) * d);
    }
    for (std::int64_t c = 0; kind == Kind::kFloats && c < d; ++c) {
      const std::int64_t to = (i * kv.num_rows + row) * d + c;
      static_cast<float*>(stored)[to] = element_at(kv.k, slot * d + c, kv.type);
      v[to] = element_at(kv.v, slot * d + c, kv.type);
    }
  }
  KVLAB_BODY void copy_channels(std::int32_t row, void* pages, std::int64_t in_pages, std::int64_t in_store) const {
    const std::int64_t d = tokens.kv.head_dim;
    const bool out = way == Way::kFromPages;
    const auto copy = [&](std::int64_t n) {
      copy_bits(out ? pages : stored, out ? in_pages : in_store, out ? stored : pages, out ? in_store : in_pages, n, tokens.kv.type);
    };
    if (channels == nullptr) return copy(d);
    const std::uint8_t* const mask = channels + row * ((d + 7) / 8);
    for (std::int64_t c = 0; c < d; ++c, ++in_pages) {
      const bool stays = (mask[c / 8] >> (c % 8) & 1U) != 0;
      if (stays)
        copy(1), ++in_store;
      else if (!out)
        set_element(pages, in_pages, tokens.kv.type, 0.0F);
    }
  }
  KVLAB_BODY void copy_words(std::int32_t row, std::int64_t i, std::int64_t slot, std::int32_t num_words) const {
    const KvRows& kv = tokens.kv;
    std::uint32_t* to = words + std::int64_t{1 + num_words} * tokens.first[row] + i;
    const auto copy = [&](auto& word) {
      if (way == Way::kFromPages)
        *to = static_cast<std::uint32_t>(word);
      else
        word = static_cast<std::remove_cvref_t<decltype(word)>>(*to);
      to += tokens.entries(row);
    };
    copy(kv.position[slot]);
    for (std::int64_t w = 0; w < num_words; ++w) copy(kv.words[w * kv.pool_tokens + slot]);
  }
};
KVLAB_ROW_OP(TokenCopy)

inline TokenCopy copy_words(const KvRows& kv, TokenCopy::Way way, std::uint32_t* words) {
  return {.tokens = {kv, kv.first}, .kind = TokenCopy::Kind::kWords, .way = way, .words = words};
}
inline TokenCopy copy_dropped(const PartedRows& rows, void* stored, std::int32_t* positions) {
  TokenCopy copy{.tokens = {rows.kv, rows.dropped_first, rows.dropped}, .kind = TokenCopy::Kind::kDropped, .stored = stored};
  copy.words = reinterpret_cast<std::uint32_t*>(positions);
  return copy;
}

}  // namespace kvlab
