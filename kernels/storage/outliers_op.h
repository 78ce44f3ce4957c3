#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include "base/ceil_div.h"
#include "kernels/kv_rows.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Places of outliers within their vectors. One array is null, on shapes both.
struct OutlierPlaces {
  std::uint16_t* narrow = nullptr;  // 65,535: none
  std::int32_t* wide = nullptr;     // -1: none

  [[nodiscard]] KVLAB_BOTH std::int32_t at(std::int64_t i) const {
    if (wide != nullptr) return wide[i];
    return narrow[i] == 0xffff ? -1 : std::int32_t{narrow[i]};
  }
  KVLAB_BOTH void set(std::int64_t i, std::int32_t place) const {
    if (wide != nullptr)
      wide[i] = place;
    else
      narrow[i] = static_cast<std::uint16_t>(place);
  }
};

// Per vector of n numbers.
KVLAB_BOTH inline std::int32_t outliers_of(double share, std::int64_t n) {
  if (share <= 0 || n < 2) return 0;
  const auto half = static_cast<std::int32_t>(std::floor(share / 2 * static_cast<double>(n) + 1e-9));
  return half < 1 ? 2 : 2 * half;
}
// Vectors of n numbers need `wide`.
constexpr bool has_wide_places(std::int64_t n) { return n > 65535; }
// The numbers and their places.
inline std::int64_t outlier_bytes(std::int64_t vectors, std::int64_t length, double share) {
  return vectors * outliers_of(share, length) * (has_wide_places(length) ? 6 : 4);
}

// Replaces the `share` / 2 largest and smallest numbers of each listed vector (rounded down, at least one) by its mean, and stores them in
// fp16 with their places, the outermost first (GEAR, Kang et al. 2024, arXiv:2403.05527, eq. 3). Of equal numbers the earlier counts as
// larger. A vector is a token's channels, or a channel of all entries of the row.
struct Outliers {
  ListedTokens tokens;
  bool per_channel = false;  // K; else per token
  double share = 0.02;
  std::uint16_t* value = nullptr;  // [outlier_numbers()] out, fp16, vector by vector
  OutlierPlaces place;             // [outlier_numbers()] out
  bool unpacks = false;            // restores the outliers

  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = tokens.total(), d = tokens.kv.head_dim, taken = first_of(tokens.kv.num_rows);
    return {.op = unpacks ? "restore_outliers" : "outliers",
            .rows = tokens.kv.num_rows,
            .tokens = n,
            .outputs = taken,
            .bytes = (unpacks ? 0 : tokens.dense_bytes()) + tokens.list_bytes() + taken * (4 + tokens.kv.kv_bytes),
            .flops = unpacks ? 0 : 3 * n * d};
  }
  // A team takes a vector, or kPart short ones.
  [[nodiscard]] std::int64_t rows() const {
    std::int64_t most = 0;
    for (std::int32_t r = 0; r < tokens.kv.num_rows; ++r) most = std::max(most, ceil_div(vectors(r), together(r)));
    return most * tokens.kv.num_rows;
  }
  [[nodiscard]] std::int64_t room(std::int64_t item) const {
    const std::int64_t row = item % tokens.kv.num_rows;
    return unpacks ? 0 : together(row) > 1 ? kPart * (2 * length(row) + 1) : outliers_of(share, length(row));
  }
  static constexpr bool kInParallel = true;
  void shapes(auto&& visit) { visit(tokens.kv), visit(tokens.first, tokens.kv.num_rows + 1); }

  // Before `row`.
  [[nodiscard]] KVLAB_BOTH std::int64_t first_of(std::int64_t row) const {
    if (!per_channel) return row == 0 ? 0 : (tokens.first[row] - tokens.first[0]) * outliers_of(share, tokens.kv.head_dim);
    std::int64_t first = 0;
    for (std::int64_t r = 0; r < row; ++r) first += std::int64_t{tokens.kv.head_dim} * outliers_of(share, tokens.entries(r));
    return first;
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t row = item % tokens.kv.num_rows, begin = item / tokens.kv.num_rows * together(row), rest = vectors(row) - begin;
    if (rest <= 0) return;
    Vectors v{static_cast<std::int32_t>(row), outliers_of(share, length(row)), begin, rest < together(row) ? rest : together(row)};
    v.first = first_of(row) + begin * v.room;
    v.tokens = team.template sum<std::int32_t>(tokens.entries(row),
                                               [&](std::int64_t i) { return tokens.index[tokens.first[row] + i] < 0 ? 0 : 1; });
    if (unpacks) return put_back(team, v);
    team.each(v.count * v.room, [&](std::int64_t i) {
      if (i % v.room >= 2 * half_of(v, i / v.room)) place.set(v.first + i, -1), value[v.first + i] = 0;
    });
    if (together(row) > 1)
      take_by_rank(team, v);
    else if constexpr (Team::kOnDevice)
      take_by_cut(team, v);
    else
      take_sorted(team, v);
  }

 private:
  static constexpr std::int64_t kPart = 8, kShort = 256;

  [[nodiscard]] KVLAB_BOTH std::int64_t length(std::int64_t row) const { return per_channel ? tokens.entries(row) : tokens.kv.head_dim; }
  [[nodiscard]] KVLAB_BOTH std::int64_t vectors(std::int64_t row) const {
    return tokens.entries(row) == 0 ? 0 : per_channel ? tokens.kv.head_dim : tokens.entries(row);
  }
  [[nodiscard]] KVLAB_BOTH std::int64_t together(std::int64_t row) const { return length(row) <= kShort ? kPart : 1; }

  // Of a row, with outliers from `first` on.
  struct Vectors {
    std::int32_t row, room;  // room: of each
    std::int64_t begin, count, first = 0;
    std::int32_t tokens = 0;  // used entries of the row
  };
  [[nodiscard]] KVLAB_BODY std::int32_t numbers(const Vectors& v, std::int64_t i) const {
    return per_channel ? v.tokens : v.begin + i < v.tokens ? tokens.kv.head_dim : 0;
  }
  [[nodiscard]] KVLAB_BODY std::int32_t half_of(const Vectors& v, std::int64_t i) const {
    const std::int32_t n = numbers(v, i);
    return (v.room < n ? v.room : n) / 2;
  }
  [[nodiscard]] KVLAB_BODY std::int64_t element(const Vectors& v, std::int64_t i, std::int64_t j) const {
    const std::int64_t entry = per_channel ? j : v.begin + i, channel = per_channel ? v.begin + i : j;
    return tokens.kv.slot(v.row, tokens.index[tokens.first[v.row] + entry]) * tokens.kv.head_dim + channel;
  }
  [[nodiscard]] KVLAB_BODY void* data() const { return tokens.values ? tokens.kv.v : tokens.kv.k; }
  [[nodiscard]] KVLAB_BODY float number(const Vectors& v, std::int64_t i, std::int64_t j) const {
    return element_at(data(), element(v, i, j), tokens.kv.type);
  }
  KVLAB_BODY void set_number(const Vectors& v, std::int64_t i, std::int64_t j, float x) const {
    set_element(data(), element(v, i, j), tokens.kv.type, x);
  }
  KVLAB_BODY void take(const Vectors& v, std::int64_t i, std::int64_t j, std::int64_t at, float mean) const {
    place.set(v.first + i * v.room + at, static_cast<std::int32_t>(j));
    value[v.first + i * v.room + at] = stored_half(number(v, i, j)).bits;
    set_number(v, i, j, mean);
  }
  // In the order of floats; NaN is beyond infinity.
  [[nodiscard]] static KVLAB_BODY std::uint32_t ascending(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x + 0.0F);  // of -0 those of 0
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  }
  // Ascending: larger numbers first, then earlier ones.
  [[nodiscard]] static KVLAB_BODY std::uint64_t rank(float x, std::int64_t j) {
    return std::uint64_t{~ascending(x)} << 32 | static_cast<std::uint32_t>(j);
  }

  template <class Team>
  KVLAB_BODY void take_by_rank(const Team& team, const Vectors& v) const {
    const std::int64_t n = length(v.row);
    auto* const ranks = reinterpret_cast<std::uint64_t*>(team.room());
    auto* const mean = reinterpret_cast<float*>(ranks + kPart * n);
    team.each(v.count * n, [&](std::int64_t i) {
      if (i % n < numbers(v, i / n)) ranks[i] = rank(number(v, i / n, i % n), i % n);
    });
    team.each(v.count, [&](std::int64_t i) {
      double sum = 0;
      for (std::int32_t j = 0; j < numbers(v, i); ++j) sum += static_cast<double>(number(v, i, j));
      mean[i] = static_cast<float>(sum / numbers(v, i));
    });
    team.each(v.count * n, [&](std::int64_t at) {
      const std::int64_t i = at / n;
      const std::int32_t used = numbers(v, i), half = half_of(v, i);
      if (at % n >= used) return;
      std::int32_t before = 0;
      for (std::int32_t j = 0; j < used; ++j) before += ranks[i * n + j] < ranks[at] ? 1 : 0;
      if (before < half || before >= used - half) take(v, i, at % n, before < half ? before : half + used - 1 - before, mean[i]);
    });
  }
  // For long vectors on the CPU.
  template <class Team>
  KVLAB_BODY void take_sorted(const Team& /*team*/, const Vectors& v) const {
    const std::int32_t n = numbers(v, 0), half = half_of(v, 0);
    if (half == 0) return;
    std::vector<std::uint64_t> ranks(static_cast<std::size_t>(n));
    double sum = 0;
    for (std::int32_t j = 0; j < n; ++j) {
      sum += static_cast<double>(number(v, 0, j));
      ranks[static_cast<std::size_t>(j)] = rank(number(v, 0, j), j);
    }
    const auto begin = ranks.begin(), high = begin + half, low = ranks.end() - half;
    std::nth_element(begin, high - 1, ranks.end());
    std::sort(begin, high);
    std::nth_element(high, low, ranks.end());
    std::sort(low, ranks.end(), std::greater<>());
    for (std::int32_t i = 0; i < half; ++i) {
      take(v, 0, static_cast<std::int64_t>(begin[i] & 0xFFFFFFFFU), i, static_cast<float>(sum / n));
      take(v, 0, static_cast<std::int64_t>(low[i] & 0xFFFFFFFFU), half + i, static_cast<float>(sum / n));
    }
  }
  // For devices: reads long vectors a fixed number of times.
  template <class Team>
  KVLAB_BODY void take_by_cut(const Team& team, const Vectors& v) const {
    const std::int32_t n = numbers(v, 0), half = half_of(v, 0);
    if (half == 0) return;
    auto* const found = reinterpret_cast<std::int32_t*>(team.room());
    const auto mean =
        static_cast<float>(team.template sum<double>(n, [&](std::int64_t j) { return static_cast<double>(number(v, 0, j)); }) / n);
    const auto high = [&](std::int64_t j) { return ascending(number(v, 0, j)); };
    const auto low = [&](std::int64_t j) { return ~high(n - 1 - j); };  // of equal ones the last
    find_largest(team, n, half, high, [&](std::int64_t k, std::int64_t j) { found[k] = static_cast<std::int32_t>(j); });
    find_largest(team, n, half, low, [&](std::int64_t k, std::int64_t j) { found[half + k] = static_cast<std::int32_t>(n - 1 - j); });
    team.each(2LL * half, [&](std::int64_t i) {
      const std::int32_t* const side = found + (i < half ? 0 : half);
      const std::uint64_t mine = rank(number(v, 0, found[i]), found[i]);
      std::int32_t before = 0;
      for (std::int32_t k = 0; k < half; ++k) before += rank(number(v, 0, side[k]), side[k]) < mine ? 1 : 0;
      const std::int64_t at = v.first + (i < half ? before : 2 * half - 1 - before);
      place.set(at, found[i]);
      value[at] = stored_half(number(v, 0, found[i])).bits;
    });
    team.each(2LL * half, [&](std::int64_t i) { set_number(v, 0, found[i], mean); });
  }
  // put(k, j) for the `count` largest key(j), j in [0, n); ties to the lower.
  template <class Team, class Key, class Put>
  KVLAB_BODY static void find_largest(const Team& team, std::int32_t n, std::int32_t count, const Key& key, const Put& put) {
    std::uint32_t cut = 0;
    for (int bit = 31; bit >= 0; --bit) {
      const std::uint32_t higher = cut | 1U << bit;
      if (team.template sum<std::int32_t>(n, [&](std::int64_t j) { return key(j) >= higher ? 1 : 0; }) >= count) cut = higher;
    }
    const std::int64_t above = team.pack(
        n, [&](std::int64_t j) { return key(j) > cut; }, put);
    team.pack(
        n, [&](std::int64_t j) { return key(j) == cut; },
        [&](std::int64_t k, std::int64_t j) {
          if (above + k < count) put(above + k, j);
        });
  }

  template <class Team>
  KVLAB_BODY void put_back(const Team& team, const Vectors& v) const {
    team.each(v.count * v.room, [&](std::int64_t i) {
      const std::int32_t j = place.at(v.first + i);
      if (j >= 0) set_number(v, i / v.room, j, to_float(f16{value[v.first + i]}));
    });
  }
};
KVLAB_ROW_OP(Outliers)

inline std::int64_t outlier_numbers(const Outliers& a) { return a.first_of(a.tokens.kv.num_rows); }
inline bool has_wide_places(const Outliers& a) {
  return has_wide_places(a.per_channel ? std::max(a.tokens.kv.head_dim, a.tokens.most_entries()) : a.tokens.kv.head_dim);
}

// As in kernels/storage/stored/stored_code.h.
template <class Arrays>
void stored_arrays(Outliers& o, Arrays& arrays) {
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
