#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "base/ceil_div.h"
#include "kernels/kv_rows.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

struct RowList;

// A packed token: per tile of kSparseTile channels a bitmap of 64 bits and an offset of 4 bytes, then each tile's fp16 numbers, zero-padded
// to a multiple of kSparsePad.
inline constexpr std::int32_t kSparseTile = 64, kSparsePad = 8, kSparseHeader = 8 + 4;
KVLAB_BOTH constexpr std::int64_t sparse_tiles(std::int64_t head_dim) { return (head_dim + kSparseTile - 1) / kSparseTile; }
KVLAB_BOTH constexpr std::int64_t sparse_padded(std::int64_t numbers) { return (numbers + kSparsePad - 1) / kSparsePad * kSparsePad; }

// For any split of kept channels over tiles.
KVLAB_BOTH constexpr std::int64_t most_sparse_bytes(std::int64_t head_dim, std::int64_t keep) {
  const std::int64_t tiles = sparse_tiles(head_dim);
  return tiles * kSparseHeader + 2 * ((keep + (kSparsePad - 1) * tiles) / kSparsePad * kSparsePad);
}
// For an even split over tiles, counted on shapes.
constexpr std::int64_t even_sparse_bytes(std::int64_t head_dim, std::int64_t keep) {
  const std::int64_t tiles = sparse_tiles(head_dim), share = keep / tiles, more = keep % tiles;
  return tiles * kSparseHeader + 2 * (more * sparse_padded(share + 1) + (tiles - more) * sparse_padded(share));
}
// From the bitmaps.
inline std::int64_t sparse_bytes(std::int64_t head_dim, const std::uint8_t* token) {
  std::int64_t bytes = 0;
  for (std::int64_t t = 0; t < sparse_tiles(head_dim); ++t) {
    std::uint64_t bitmap = 0;
    std::memcpy(&bitmap, token + t * kSparseHeader, 8);
    bytes += kSparseHeader + 2 * sparse_padded(std::popcount(bitmap));
  }
  return bytes;
}

// Keeps `keep` channels of each listed vector; ties go to the lower channel.
//   kPack    packs those of largest |x| (Mustafar, Joo et al. 2025, arXiv:2505.22913, section 3.2); the vectors stay
//   kUnpack  writes packed tokens into the listed vectors: the other channels become 0
//   kPrune   those of largest score, equal for a whole row: the others become 0 (ThinK, Xu et al. 2024, arXiv:2407.21018, eq. 7). Stored
//            form: kernels/storage/stored/stored_channels.h
struct Sparsify {
  enum class Kind : std::uint8_t { kPack, kUnpack, kPrune };
  ListedTokens tokens;
  std::int32_t keep = 0;  // 0 to head_dim
  Kind kind = Kind::kPack;
  std::uint8_t* packed = nullptr;        // [total(), most_sparse_bytes()]; kPack: out
  const float* channel_score = nullptr;  // kPrune: [*, head_dim]; line line[r] is row r's
  const std::int32_t* line = nullptr;    // kPrune: [num_rows]

  // Two comparisons per ranked number.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = tokens.total(), num_rows = tokens.kv.num_rows, d = tokens.kv.head_dim;
    const bool prunes = kind == Kind::kPrune;
    return {.op = prunes                  ? "prune_channels"
                  : kind == Kind::kUnpack ? "unsparsify"
                                          : "sparsify",
            .rows = num_rows,
            .tokens = n,
            .outputs = n,
            .bytes = tokens.dense_bytes() + tokens.list_bytes() +
                     (prunes ? n * keep * tokens.kv.kv_bytes + 4 * num_rows * d : n * even_sparse_bytes(d, keep)),
            .flops = kind == Kind::kUnpack ? 0 : 2 * (prunes ? num_rows : n) * d};
  }
  [[nodiscard]] std::int64_t rows() const { return tokens.kv.num_rows * ceil_div<std::int64_t>(tokens.most_entries(), part()); }
  [[nodiscard]] std::int64_t room(std::int64_t /*item*/) const {
    return kind == Kind::kUnpack ? 0 : 2 * ranked(part()) * tokens.kv.head_dim;
  }
  void shapes(auto&& visit) { visit(tokens.kv), visit(tokens.first, tokens.kv.num_rows + 1), visit(line, tokens.kv.num_rows); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t row = item % tokens.kv.num_rows, begin = item / tokens.kv.num_rows * part(), rest = tokens.entries(row) - begin;
    if (rest <= 0) return;
    const Part mine{static_cast<std::int32_t>(row), tokens.first[row] + begin, tokens.values ? tokens.kv.v : tokens.kv.k};
    const auto n = team.template sum<std::int32_t>(rest < part() ? rest : part(),
                                                   [&](std::int64_t i) { return tokens.index[mine.first + i] < 0 ? 0 : 1; });
    if (kind == Kind::kUnpack) return unpack(team, mine, n);
    const std::int64_t d = tokens.kv.head_dim, tiles = sparse_tiles(d);
    const std::int32_t* const kept = rank(team, mine, n);
    if (kind == Kind::kPack)
      return team.each(n * tiles, [&](std::int64_t j) { pack_tile(mine, j / tiles, j % tiles, kept + j / tiles * d); });
    team.each(n * d, [&](std::int64_t j) {
      if (kept[j % d] == 0) set_element(mine.data, element(mine, j / d, j % d), tokens.kv.type, 0.0F);
    });
  }

 private:
  struct Part {
    std::int32_t row;
    std::int64_t first;  // entry
    void* data;          // K or V
  };
  [[nodiscard]] KVLAB_BODY std::uint8_t* token(const Part& part, std::int64_t i) const {
    return packed + (part.first + i) * most_sparse_bytes(tokens.kv.head_dim, keep);
  }
  [[nodiscard]] KVLAB_BODY std::int64_t element(const Part& part, std::int64_t i, std::int64_t c) const {
    return tokens.kv.slot(part.row, tokens.index[part.first + i]) * tokens.kv.head_dim + c;
  }

  // Entries per team, and ranked vectors for n of them.
  [[nodiscard]] KVLAB_BOTH std::int64_t part() const { return kind == Kind::kPrune ? 32 : 8; }
  [[nodiscard]] KVLAB_BOTH std::int64_t ranked(std::int64_t n) const { return kind == Kind::kPrune ? 1 : n; }

  // [ranked(n), head_dim]: 1 for the largest numbers.
  template <class Team>
  KVLAB_BODY const std::int32_t* rank(const Team& team, const Part& mine, std::int64_t n) const {
    const std::int64_t d = tokens.kv.head_dim, numbers = ranked(n) * d;
    float* const size = team.room();
    auto* const kept = reinterpret_cast<std::int32_t*>(size + ranked(part()) * d);
    team.each(numbers, [&](std::int64_t j) {
      const float x = kind == Kind::kPrune ? channel_score[line[mine.row] * d + j]
                                           : std::fabs(element_at(mine.data, element(mine, j / d, j % d), tokens.kv.type));
      size[j] = std::isnan(x) ? -INFINITY : x;
    });
    team.each(numbers, [&](std::int64_t j) {
      const float *const of_vector = size + j / d * d, own = size[j];
      std::int32_t larger = 0;
      for (std::int64_t c = 0; c < j % d; ++c) larger += of_vector[c] >= own ? 1 : 0;
      for (std::int64_t c = j % d + 1; c < d; ++c) larger += of_vector[c] > own ? 1 : 0;
      kept[j] = larger < keep ? 1 : 0;
    });
    return kept;
  }
  KVLAB_BODY void pack_tile(const Part& part, std::int64_t i, std::int64_t tile, const std::int32_t* kept) const {
    const std::int64_t d = tokens.kv.head_dim, end = (tile + 1) * kSparseTile < d ? (tile + 1) * kSparseTile : d;
    std::int64_t before = 0, count = 0;
    for (std::int64_t t = 0; t < tile; ++t, count = 0) {
      for (std::int64_t c = t * kSparseTile; c < (t + 1) * kSparseTile; ++c) count += kept[c];
      before += 2 * sparse_padded(count);
    }
    std::uint8_t* const numbers = token(part, i) + sparse_tiles(d) * kSparseHeader + before;
    const auto put = [&](std::uint16_t x) { std::memcpy(numbers + 2 * count++, &x, 2); };
    std::uint64_t bitmap = 0;
    for (std::int64_t c = tile * kSparseTile; c < end; ++c) {
      if (kept[c] == 0) continue;
      bitmap |= std::uint64_t{1} << (c % kSparseTile);
      put(stored_half(element_at(part.data, element(part, i, c), tokens.kv.type)).bits);
    }
    while (count % kSparsePad != 0) put(0);
    const auto offset = static_cast<std::uint32_t>(before);
    std::memcpy(token(part, i) + tile * kSparseHeader, &bitmap, 8);
    std::memcpy(token(part, i) + tile * kSparseHeader + 8, &offset, 4);
  }

  template <class Team>
  KVLAB_BODY void unpack(const Team& team, const Part& part, std::int64_t n) const {
    const std::int64_t d = tokens.kv.head_dim;
    team.each(n * d, [&](std::int64_t j) {
      const std::int64_t c = j % d;
      const std::uint8_t *const of_token = token(part, j / d), *const header = of_token + c / kSparseTile * kSparseHeader;
      std::uint64_t bitmap = 0;
      std::uint32_t offset = 0;
      f16 x{0};
      std::memcpy(&bitmap, header, 8);
      std::memcpy(&offset, header + 8, 4);
      const std::uint64_t bit = std::uint64_t{1} << (c % kSparseTile);
      if ((bitmap & bit) != 0)
        std::memcpy(&x.bits, of_token + sparse_tiles(d) * kSparseHeader + offset + 2 * std::popcount(bitmap & (bit - 1)), 2);
      set_element(part.data, element(part, j / d, c), tokens.kv.type, to_float(x));
    });
  }
};
KVLAB_ROW_OP(Sparsify)

// As in kernels/storage/stored/stored_code.h.
template <class Arrays>
void stored_arrays(Sparsify& a, Arrays& arrays) {
  arrays.rows(a.packed, [&](std::int64_t entries) { return entries * most_sparse_bytes(a.tokens.kv.head_dim, a.keep); });
}
inline bool goes_on(const Sparsify& a, const Sparsify& later, std::span<const RowList> /*lists*/) { return later.keep == a.keep; }

}  // namespace kvlab
