#include "kernels/storage/outliers/outliers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/ceil_div.h"
#include "base/half.h"
#include "base/parallel.h"
#include "kernels/storage/cast/stored_type.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

namespace {

// f(row, vector of the row, numbers by its entries, numbers of its tokens).
template <class F>
void for_each_vector(const Outliers& a, F&& f) {
  const std::int32_t d = a.tokens.kv.head_dim;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::int32_t entries = a.tokens.entries(r), tokens = entries > 0 ? a.tokens.count(r) : 0;
    if (entries == 0) continue;
    const std::int32_t vectors = a.per_channel ? d : entries;
    for (std::int32_t v = 0; v < vectors; ++v) f(r, v, a.per_channel ? entries : d, a.per_channel ? tokens : v < tokens ? d : 0);
  }
}

float& number(const Outliers& a, std::int32_t row, std::int32_t vector, std::int32_t i) {
  return a.per_channel ? a.tokens.at(row, i)[vector] : a.tokens.at(row, vector)[i];
}

}  // namespace

std::int32_t outliers_of(double share, std::int64_t n) {
  if (share <= 0 || n < 2) return 0;
  return 2 * std::max(1, static_cast<std::int32_t>(std::floor(share / 2 * static_cast<double>(n) + 1e-9)));
}

std::int64_t outlier_numbers(const Outliers& a) {
  const std::int64_t d = a.tokens.kv.head_dim;
  std::int64_t n = 0;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::int64_t entries = a.tokens.entries(r);
    n += a.per_channel ? d * outliers_of(a.share, entries) : entries * outliers_of(a.share, d);
  }
  return n;
}

bool has_wide_places(const Outliers& a) {
  std::int64_t longest = a.tokens.kv.head_dim;
  for (std::int32_t r = 0; a.per_channel && r < a.tokens.kv.num_rows; ++r) longest = std::max<std::int64_t>(longest, a.tokens.entries(r));
  return has_wide_places(longest);
}

std::int64_t outlier_bytes(std::int64_t vectors, std::int64_t length, double share) {
  return vectors * outliers_of(share, length) * (has_wide_places(length) ? 6 : 4);
}

OpCall call(const Outliers& a) {
  const std::int64_t n = a.tokens.total(), d = a.tokens.kv.head_dim, taken = outlier_numbers(a);
  return {.op = a.unpacks ? "restore_outliers" : "outliers",
          .rows = a.tokens.kv.num_rows,
          .tokens = n,
          .outputs = taken,
          .bytes = (a.unpacks ? 0 : a.tokens.dense_bytes()) + a.tokens.list_bytes() + taken * (4 + a.tokens.kv.kv_bytes),
          .flops = a.unpacks ? 0 : 3 * n * d};
}
KVLAB_WITHOUT_CUDA(Outliers)

namespace {

// Ascending: larger numbers first, equals in order. NaN is beyond infinity.
std::uint64_t rank(float x, std::int32_t i) {
  const auto bits = std::bit_cast<std::uint32_t>(x + 0.0F);  // -0 as 0
  const std::uint32_t ascending = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return std::uint64_t{~ascending} << 32 | static_cast<std::uint32_t>(i);
}

// The outermost first; the mean of the n numbers remains.
void take_out(const Outliers& a, std::int32_t r, std::int32_t v, std::int32_t n, std::int32_t half, std::int64_t first) {
  std::vector<std::uint64_t> ranks(static_cast<std::size_t>(n));
  double sum = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    const float x = number(a, r, v, i);
    sum += double{x};
    ranks[static_cast<std::size_t>(i)] = rank(x, i);
  }
  const auto begin = ranks.begin(), high = begin + half, low = ranks.end() - half;
  std::nth_element(begin, high - 1, ranks.end());
  std::sort(begin, high);
  std::nth_element(high, low, ranks.end());
  std::sort(low, ranks.end(), std::greater<>());
  const auto mean = static_cast<float>(sum / n);
  for (std::int32_t i = 0; i < 2 * half; ++i) {
    const auto at = static_cast<std::int32_t>((i < half ? begin[i] : low[i - half]) & 0xFFFFFFFFU);
    float& x = number(a, r, v, at);
    a.place.set(first + i, at);
    a.value[first + i] = static_cast<std::uint16_t>(to_stored(StoredType::kFp16, x));
    x = mean;
  }
}

void take_all_out(const Outliers& a) {
  struct Vector {
    std::int32_t row, index, tokens, half;
    std::int64_t first;
  };
  std::vector<Vector> vectors;
  std::int64_t first = 0;
  for_each_vector(a, [&](std::int32_t r, std::int32_t v, std::int32_t entries, std::int32_t n) {
    const std::int32_t room = outliers_of(a.share, entries), half = std::min(room / 2, n / 2);
    for (std::int32_t i = 0; i < room; ++i) a.place.set(first + i, -1), a.value[first + i] = 0;
    if (half > 0) vectors.push_back({r, v, n, half, first});
    first += room;
  });
  constexpr std::int64_t kPart = 16;
  const auto count = static_cast<std::int64_t>(vectors.size());
  for_each_in_parallel(ceil_div(count, kPart), [&](std::int64_t part) {
    for (std::int64_t i = part * kPart; i < std::min(count, (part + 1) * kPart); ++i) {
      const Vector& v = vectors[static_cast<std::size_t>(i)];
      take_out(a, v.row, v.index, v.tokens, v.half, v.first);
    }
  });
}

void put_back(const Outliers& a) {
  std::int64_t at = 0;
  for_each_vector(a, [&](std::int32_t r, std::int32_t v, std::int32_t entries, std::int32_t) {
    for (const std::int64_t end = at + outliers_of(a.share, entries); at < end; ++at)
      if (const std::int32_t place = a.place.at(at); place >= 0) number(a, r, v, place) = half_to_float(a.value[at]);
  });
}

}  // namespace

void run_cpu(const Outliers& a) { a.unpacks ? put_back(a) : take_all_out(a); }

void stored_arrays(Outliers& o, StoredArrays& arrays) {
  const std::int64_t d = o.tokens.kv.head_dim;
  const auto numbers_of = [&](std::int64_t entries) {
    return o.per_channel ? d * outliers_of(o.share, entries) : entries * outliers_of(o.share, d);
  };
  arrays.rows(o.value, numbers_of);
  if (o.place.wide != nullptr)
    arrays.rows(o.place.wide, numbers_of);
  else
    arrays.rows(o.place.narrow, numbers_of);
}

}  // namespace kvlab
