#include "kernels/outliers/outliers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/half.h"
#include "kernels/cast/stored_type.h"

namespace kvlab {

namespace {

// Calls f(row, vector of the row, numbers by its entries, numbers that stand for tokens) for each vector.
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
  return {"outliers", a.tokens.kv.num_rows, n, taken, a.tokens.dense_bytes() + a.tokens.list_bytes() + taken * (4 + a.tokens.kv.kv_bytes),
          3 * n * d};
}

void run_cpu(const Outliers& a) {
  std::int64_t first = 0;  // of the vector's outliers
  std::vector<std::int32_t> order;
  for_each_vector(a, [&](std::int32_t r, std::int32_t v, std::int32_t entries, std::int32_t n) {
    const std::int32_t room = outliers_of(a.share, entries), half = std::min(room / 2, n / 2);
    for (std::int32_t i = 0; i < room; ++i) a.place.set(first + i, -1), a.value[first + i] = 0;
    if (half > 0) {
      double sum = 0;
      for (std::int32_t i = 0; i < n; ++i) sum += double{number(a, r, v, i)};
      order.resize(static_cast<std::size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) { return number(a, r, v, x) > number(a, r, v, y); });
      for (std::int32_t i = 0; i < 2 * half; ++i) {
        const std::int32_t at = order[static_cast<std::size_t>(i < half ? i : n - 1 - (i - half))];
        a.place.set(first + i, at);
        a.value[first + i] = static_cast<std::uint16_t>(to_stored(StoredType::kFp16, number(a, r, v, at)));
      }
      for (std::int32_t i = 0; i < 2 * half; ++i) number(a, r, v, a.place.at(first + i)) = static_cast<float>(sum / n);
    }
    first += room;
  });
}

OpCall call(const RestoreOutliers& b) {
  const std::int64_t n = b.outliers.tokens.total(), taken = outlier_numbers(b.outliers);
  return {"restore_outliers",
          b.outliers.tokens.kv.num_rows,
          n,
          taken,
          taken * (4 + b.outliers.tokens.kv.kv_bytes) + b.outliers.tokens.list_bytes(),
          0};
}

void run_cpu(const RestoreOutliers& b) {
  const Outliers& a = b.outliers;
  std::int64_t at = 0;
  for_each_vector(a, [&](std::int32_t r, std::int32_t v, std::int32_t entries, std::int32_t) {
    for (const std::int64_t end = at + outliers_of(a.share, entries); at < end; ++at)
      if (const std::int32_t place = a.place.at(at); place >= 0) number(a, r, v, place) = half_to_float(a.value[at]);
  });
}

}  // namespace kvlab
