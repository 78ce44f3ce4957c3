#pragma once

#include "kernels/kv_rows.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {

// Random lists of tokens of each row, ascending: entries[r] of them, of which tokens[r] are tokens.
template <class T>
class ListedFixture {
 public:
  ListedFixture(const RowsShape& shape, const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& entries,
                const std::vector<std::int32_t>& tokens, std::uint64_t seed)
      : rows(shape, lengths, seed), first(1, 0) {
    std::mt19937_64 random(seed + 9);
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      std::vector<std::int32_t> all(static_cast<std::size_t>(lengths[r]));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      all.resize(static_cast<std::size_t>(tokens[r]));
      std::sort(all.begin(), all.end());
      all.resize(static_cast<std::size_t>(entries[r]), -1);
      index.insert(index.end(), all.begin(), all.end());
      first.push_back(static_cast<std::int64_t>(index.size()));
    }
    device_index_ = DeviceBuffer<std::int32_t>(index);
  }
  ListedTokens host(bool values = false) { return {rows.host(), first.data(), index.data(), values}; }
  ListedTokens device(bool values = false) { return {rows.device(), first.data(), device_index_.data(), values}; }
  ListedTokens at(bool gpu, bool values = false) { return gpu ? device(values) : host(values); }

  RowsFixture<T> rows;
  std::vector<std::int64_t> first;
  std::vector<std::int32_t> index;

 private:
  DeviceBuffer<std::int32_t> device_index_;
};

}  // namespace kvlab
