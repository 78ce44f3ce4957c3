#include "kernels/storage/renumber/renumber.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/storage/renumber/place_angle.h"

namespace kvlab {

namespace {

// A row's list, and by how much its keys turn.
struct RowPlaces {
  const std::int32_t* index;
  const float* frequencies;  // null: no turn
  std::int64_t listed, len, end;

  RowPlaces(const KvRows& kv, const Places& p, std::int32_t row)
      : index(p.index + p.index_first[row]),
        frequencies(p.frequencies == nullptr ? nullptr : p.frequencies + std::int64_t{kv.sequence(row)} * (kv.head_dim / 2)),
        listed(p.index_first[row + 1] - p.index_first[row]),
        len(kv.len[row]),
        end(p.end[kv.sequence(row)]) {}

  // True: entry j keeps its place, as all later ones do.
  [[nodiscard]] bool stays(std::int64_t j) const { return frequencies == nullptr || len - index[j] == listed - j; }
  void turn(std::int64_t j, std::int64_t head_dim, float* key) const {
    float* const high = key + head_dim / 2;
    for (std::int64_t c = 0; c < head_dim / 2; ++c) {
      const double angle = place_angle(end, len, index[j], listed, j, frequencies[c]);
      const auto cos = static_cast<float>(std::cos(angle)), sin = static_cast<float>(std::sin(angle));
      const float x = key[c], y = high[c];
      key[c] = x * cos - y * sin;
      high[c] = y * cos + x * sin;
    }
  }
};

}  // namespace

OpCall call(const RenumberKeys& a) {
  const std::int64_t listed = a.places.index_first[a.kv.num_rows];
  return {.op = "renumber_keys",
          .rows = a.kv.num_rows,
          .tokens = listed,
          .outputs = listed,
          .bytes = listed * (2 * a.kv.head_dim * a.kv.kv_bytes + 4),
          .flops = 3 * listed * a.kv.head_dim};
}
KVLAB_WITHOUT_CUDA(RenumberKeys)

void run_cpu(const RenumberKeys& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    const RowPlaces places(a.kv, a.places, r);
    for (std::int64_t j = 0; j < places.listed && !places.stays(j); ++j)
      places.turn(j, a.kv.head_dim, a.kv.key(r, static_cast<std::int32_t>(j)));
  });
}

OpCall call(const PlaceSelected& a) {
  const std::int64_t listed = a.places.index_first[a.kv.num_rows];
  return {.op = "place_selected",
          .rows = a.kv.num_rows,
          .tokens = listed,
          .outputs = listed,
          .bytes = listed * (4 * a.kv.head_dim * a.kv.kv_bytes + 12),
          .flops = 3 * listed * a.kv.head_dim};
}
KVLAB_WITHOUT_CUDA(PlaceSelected)

void run_cpu(const PlaceSelected& a) {
  const std::int64_t d = a.kv.head_dim;
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    const RowPlaces places(a.kv, a.places, r);
    for (std::int64_t j = 0; j < places.listed; ++j) {
      const std::int64_t from = a.kv.slot(r, places.index[j]), to = a.out.slot(r, static_cast<std::int32_t>(j));
      std::copy_n(a.kv.k + from * d, d, a.out.k + to * d);
      std::copy_n(a.kv.v + from * d, d, a.out.v + to * d);
      a.out.position[to] = a.kv.position[from];
      if (!places.stays(j)) places.turn(j, d, a.out.k + to * d);
    }
  });
}

}  // namespace kvlab
