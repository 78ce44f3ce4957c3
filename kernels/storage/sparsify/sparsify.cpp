#include "kernels/storage/sparsify/sparsify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/ceil_div.h"
#include "base/half.h"
#include "kernels/storage/cast/stored_type.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

namespace {

constexpr std::int64_t kHeader = 8 + 4;  // bitmap and offset of a tile

std::int64_t tiles_of(std::int32_t head_dim) { return ceil_div(head_dim, kSparseTile); }
std::int64_t padded(std::int64_t numbers) { return round_up(numbers, kSparsePad); }

void pack(const float* x, const std::vector<bool>& kept, std::uint8_t* token) {
  const auto d = static_cast<std::int32_t>(kept.size());
  const std::int64_t tiles = tiles_of(d);
  std::uint8_t* number = token + tiles * kHeader;
  for (std::int32_t t = 0; t < tiles; ++t) {
    std::uint64_t bitmap = 0;
    const auto offset = static_cast<std::uint32_t>(number - (token + tiles * kHeader));
    std::int64_t count = 0;
    for (std::int32_t c = t * kSparseTile; c < std::min(d, (t + 1) * kSparseTile); ++c) {
      if (!kept[static_cast<std::size_t>(c)]) continue;
      bitmap |= std::uint64_t{1} << (c % kSparseTile);
      const auto half = static_cast<std::uint16_t>(to_stored(StoredType::kFp16, x[c]));
      std::memcpy(number + 2 * count++, &half, 2);
    }
    std::fill_n(number + 2 * count, 2 * (padded(count) - count), std::uint8_t{0});
    number += 2 * padded(count);
    std::memcpy(token + t * kHeader, &bitmap, 8);
    std::memcpy(token + t * kHeader + 8, &offset, 4);
  }
}

void unpack(const std::uint8_t* token, std::int32_t d, float* x) {
  const std::int64_t tiles = tiles_of(d);
  for (std::int32_t t = 0; t < tiles; ++t) {
    std::uint64_t bitmap = 0;
    std::uint32_t offset = 0;
    std::memcpy(&bitmap, token + t * kHeader, 8);
    std::memcpy(&offset, token + t * kHeader + 8, 4);
    const std::uint8_t* number = token + tiles * kHeader + offset;
    float* const tile = x + t * kSparseTile;
    std::fill_n(tile, std::min(d - t * kSparseTile, kSparseTile), 0.0F);
    for (; bitmap != 0; bitmap &= bitmap - 1, number += 2) {  // as long for every pattern of as many bits
      std::uint16_t half = 0;
      std::memcpy(&half, number, 2);
      tile[std::countr_zero(bitmap)] = half_to_float(half);
    }
  }
}

}  // namespace

std::int64_t most_sparse_bytes(std::int32_t head_dim, std::int32_t keep) {
  const std::int64_t tiles = tiles_of(head_dim);
  return tiles * kHeader + 2 * ((keep + (kSparsePad - 1) * tiles) / kSparsePad * kSparsePad);
}

std::int64_t even_sparse_bytes(std::int32_t head_dim, std::int32_t keep) {
  const std::int64_t tiles = tiles_of(head_dim), share = keep / tiles, more = keep % tiles;
  return tiles * kHeader + 2 * (more * padded(share + 1) + (tiles - more) * padded(share));
}

std::int64_t sparse_bytes(std::int32_t head_dim, const std::uint8_t* token) {
  std::int64_t bytes = 0;
  for (std::int64_t t = 0; t < tiles_of(head_dim); ++t) {
    std::uint64_t bitmap = 0;
    std::memcpy(&bitmap, token + t * kHeader, 8);
    bytes += kHeader + 2 * padded(std::popcount(bitmap));
  }
  return bytes;
}

OpCall call(const Sparsify& a) {
  const std::int64_t n = a.tokens.total(), d = a.tokens.kv.head_dim;
  const std::int64_t moved = a.tokens.dense_bytes() + a.tokens.list_bytes() + n * even_sparse_bytes(a.tokens.kv.head_dim, a.keep);
  return {.op = a.unpacks ? "unsparsify" : "sparsify",
          .rows = a.tokens.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = moved,
          .flops = a.unpacks ? 0 : 2 * n * d};
}
KVLAB_WITHOUT_CUDA(Sparsify)

namespace {

void sparsify(const Sparsify& a) {
  const std::int32_t d = a.tokens.kv.head_dim;
  const std::int64_t token_bytes = most_sparse_bytes(d, a.keep);
  std::vector<std::int32_t> order(static_cast<std::size_t>(d));
  std::vector<bool> kept(static_cast<std::size_t>(d));
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::int32_t tokens = a.tokens.count(r);
    for (std::int32_t i = 0; i < tokens; ++i) {
      const float* const x = a.tokens.at(r, i);
      const auto size = [x](std::int32_t c) { return std::isnan(x[c]) ? -1.0F : std::fabs(x[c]); };
      std::iota(order.begin(), order.end(), 0);
      std::nth_element(order.begin(), order.begin() + a.keep, order.end(),
                       [&](std::int32_t p, std::int32_t q) { return size(p) > size(q) || (size(p) == size(q) && p < q); });
      std::fill(kept.begin(), kept.end(), false);
      for (std::int32_t c = 0; c < a.keep; ++c) kept[static_cast<std::size_t>(order[static_cast<std::size_t>(c)])] = true;
      pack(x, kept, a.packed + (a.tokens.first[r] + i) * token_bytes);
    }
  }
}

void unsparsify(const Sparsify& a) {
  const std::int64_t token_bytes = most_sparse_bytes(a.tokens.kv.head_dim, a.keep);
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::int32_t tokens = a.tokens.count(r);
    for (std::int32_t i = 0; i < tokens; ++i)
      unpack(a.packed + (a.tokens.first[r] + i) * token_bytes, a.tokens.kv.head_dim, a.tokens.at(r, i));
  }
}

}  // namespace

void run_cpu(const Sparsify& a) { a.unpacks ? unsparsify(a) : sparsify(a); }

void stored_arrays(Sparsify& a, StoredArrays& arrays) {
  arrays.rows(a.packed, [&](std::int64_t entries) { return entries * most_sparse_bytes(a.tokens.kv.head_dim, a.keep); });
}

bool goes_on(const Sparsify& a, const Sparsify& later, std::span<const RowList>) { return later.keep == a.keep; }

}  // namespace kvlab
