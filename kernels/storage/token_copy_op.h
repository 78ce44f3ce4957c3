#pragma once

#include "kernels/listed_tokens.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Copies tokens between pages and consecutive memory, bit for bit. VectorCopy and WordCopy are not logged.
enum class TokenCopyWay : std::uint8_t { kFromPages, kIntoPages };

// In list order: all channels, or those of a row's mask; kIntoPages sets the others to 0. Entries of -1 are skipped.
struct VectorCopy {
  ListedTokens tokens;
  TokenCopyWay way = TokenCopyWay::kFromPages;
  void* stored = nullptr;                  // [total(), width()] of the pages' type
  const std::uint8_t* channels = nullptr;  // [num_rows, (head_dim + 7) / 8] bit c % 8 of byte c / 8; null: all
  std::int32_t keep = 0;                   // bits per mask; with shapes only 0: all channels

  [[nodiscard]] KVLAB_BOTH std::int32_t width() const { return channels == nullptr ? tokens.kv.head_dim : keep; }
  [[nodiscard]] OpCall cost() const {
    const KvRows& kv = tokens.kv;
    const std::int64_t n = tokens.total(), d = kv.head_dim, each = keep > 0 ? keep : d;
    const std::int64_t in_pages = way == TokenCopyWay::kIntoPages ? d : each;
    return {.op = "token_copy",
            .rows = kv.num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = tokens.list_bytes() + n * (each + in_pages) * kv.kv_bytes};
  }
  [[nodiscard]] std::int64_t rows() const { return tokens.kv.num_rows; }
  void shapes(auto&& visit) { visit(tokens.kv), visit(tokens.first, rows() + 1); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return tokens.first[row + 1] - tokens.first[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const KvRows& kv = tokens.kv;
    const std::int64_t at = tokens.first[row] + i, d = kv.head_dim;
    if (tokens.index[at] < 0) return;
    void* const pages = tokens.values ? kv.v : kv.k;
    std::int64_t in_pages = kv.slot(static_cast<std::int32_t>(row), tokens.index[at]) * d, in_store = at * width();
    const bool out = way == TokenCopyWay::kFromPages;
    const auto copy = [&](std::int64_t n) {
      copy_bits(out ? pages : stored, out ? in_pages : in_store, out ? stored : pages, out ? in_store : in_pages, n, kv.type);
    };
    if (channels == nullptr) return copy(d);
    const std::uint8_t* const mask = channels + row * ((d + 7) / 8);
    for (std::int64_t c = 0; c < d; ++c, ++in_pages) {
      const bool stays = (mask[c / 8] >> (c % 8) & 1U) != 0;
      if (stays)
        copy(1), ++in_store;
      else if (!out)
        set_element(pages, in_pages, kv.type, 0.0F);
    }
  }
};
KVLAB_EACH_OP(VectorCopy)

// Positions and statistics of all tokens: [1 + num_words, len] per row. With `numbers` positions become the tokens' numbers in their row.
struct WordCopy {
  KvRows kv;
  TokenCopyWay way = TokenCopyWay::kFromPages;
  std::uint32_t* stored = nullptr;  // [(1 + num_words) * kv.total()]
  bool numbers = false;

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    if (numbers) return {.op = "local_positions", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = 4 * n};
    return {.op = "token_copy", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = 2 * 4 * (std::int64_t{1} + kv.num_words) * n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) { visit(kv); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return kv.len[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t slot = kv.slot(static_cast<std::int32_t>(row), static_cast<std::int32_t>(i));
    if (numbers) {
      kv.position[slot] = static_cast<std::int32_t>(i);
      return;
    }
    const bool out = way == TokenCopyWay::kFromPages;
    std::uint32_t* to = stored + std::int64_t{1 + kv.num_words} * kv.first[row] + i;
    const auto copy = [&](auto& word) {
      if (out)
        *to = static_cast<std::uint32_t>(word);
      else
        word = static_cast<std::remove_cvref_t<decltype(word)>>(*to);
      to += kv.len[row];
    };
    copy(kv.position[slot]);
    for (std::int64_t w = 0; w < kv.num_words; ++w) copy(kv.words[w * kv.pool_tokens + slot]);
  }
};
KVLAB_EACH_OP(WordCopy)

// K, V and positions of the dropped tokens, for another tier.
struct PackDropped {
  PartedRows parts;
  float* packed = nullptr;           // [total_dropped(), 2, head_dim] out, K before V; of the type of kv
  std::int32_t* position = nullptr;  // [total_dropped()] out

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = parts.total_dropped(), d = parts.kv.head_dim;
    return {.op = "pack_dropped", .rows = rows(), .tokens = n, .outputs = n, .bytes = n * (4 * d * parts.kv.kv_bytes + 12)};
  }
  [[nodiscard]] std::int64_t rows() const { return parts.kv.num_rows; }
  void shapes(auto&& visit) { visit_parts(parts, visit); }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return parts.num_dropped(static_cast<std::int32_t>(row)); }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const KvRows& kv = parts.kv;
    const std::int64_t at = parts.dropped_first[row] + i, d = kv.head_dim;
    const std::int64_t slot = kv.slot(static_cast<std::int32_t>(row), parts.dropped[at]);
    position[at] = kv.position[slot];
    copy_bits(kv.k, slot * d, packed, at * 2 * d, d, kv.type);
    copy_bits(kv.v, slot * d, packed, (at * 2 + 1) * d, d, kv.type);
  }
};
KVLAB_EACH_OP(PackDropped)

}  // namespace kvlab
