#pragma once

#include <numeric>

#include "kernels/kv_rows.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {

// The tokens of rows parted at random: kept[r] of them stay.
template <class T>
class PartsFixture {
 public:
  PartsFixture(const RowsShape& shape, const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& num_kept,
               std::uint64_t seed)
      : rows(shape, lengths, seed), kept_first(1, 0), dropped_first(1, 0) {
    std::mt19937_64 random(seed + 9);
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      std::vector<std::int32_t> all(static_cast<std::size_t>(lengths[r]));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + num_kept[r]);
      std::sort(all.begin() + num_kept[r], all.end());
      kept.insert(kept.end(), all.begin(), all.begin() + num_kept[r]);
      dropped.insert(dropped.end(), all.begin() + num_kept[r], all.end());
      kept_first.push_back(static_cast<std::int64_t>(kept.size()));
      dropped_first.push_back(static_cast<std::int64_t>(dropped.size()));
    }
    device_kept_ = DeviceBuffer<std::int32_t>(kept), device_dropped_ = DeviceBuffer<std::int32_t>(dropped);
  }
  PartedRows host() { return {rows.host(), kept_first.data(), kept.data(), dropped_first.data(), dropped.data()}; }
  PartedRows device() { return {rows.device(), kept_first.data(), device_kept_.data(), dropped_first.data(), device_dropped_.data()}; }
  PartedRows at(bool gpu) { return gpu ? device() : host(); }
  [[nodiscard]] std::int64_t total_dropped() const { return dropped_first.back(); }

  RowsFixture<T> rows;
  std::vector<std::int64_t> kept_first, dropped_first;
  std::vector<std::int32_t> kept, dropped;

 private:
  DeviceBuffer<std::int32_t> device_kept_, device_dropped_;
};

}  // namespace kvlab
