#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kernels/tensor_memory.h"

namespace kvlab {

// Rows in one memory, in order.
template <class T>
class RowNumbers {
 public:
  struct Range {
    const T* from = nullptr;
    std::int64_t count = 0;
  };

  explicit RowNumbers(const TensorMemory& memory) : data_(memory) {}
  // Copies ranges of the same memory.
  RowNumbers(const TensorMemory& memory, std::span<const Range> rows) : data_(memory) {
    std::vector<std::int64_t> counts;
    for (const Range& row : rows) counts.push_back(row.count);
    lay_out(counts);
    data_.resize(first_.back());
    copy(rows);
  }

  // Not initialised; loses earlier numbers. Grows by an eighth more.
  T* make_room(const std::vector<std::int64_t>& counts) {
    lay_out(counts);
    if (first_.back() > data_.capacity()) {
      data_ = TensorArray<T>(data_.memory());
      data_.reserve(first_.back() + first_.back() / 8);
    }
    data_.resize(first_.back());
    return data_.data();
  }
  void append(const RowNumbers& later) {
    std::vector<std::int64_t> counts;
    for (std::int64_t r = 0; r < rows(); ++r) counts.push_back(count(r) + later.count(r));
    if (data_.memory().on_host() && first_.back() + later.first_.back() <= data_.capacity()) return append_here(later, counts);
    RowNumbers both(data_.memory());
    std::vector<Range> parts;
    for (std::int64_t r = 0; r < rows(); ++r) parts.insert(parts.end(), {{row(r), count(r)}, {later.row(r), later.count(r)}});
    static_cast<void>(both.make_room(counts));
    both.copy(parts);
    *this = std::move(both);
  }

  void move_to(const TensorMemory& memory) { data_.move_to(memory); }

  [[nodiscard]] std::int64_t rows() const { return std::ssize(first_) - 1; }
  [[nodiscard]] T* row(std::int64_t r) const { return data_.data() + first_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] std::int64_t count(std::int64_t r) const {
    return first_[static_cast<std::size_t>(r + 1)] - first_[static_cast<std::size_t>(r)];
  }
  [[nodiscard]] std::int64_t bytes() const { return data_.size() * std::int64_t{sizeof(T)}; }
  // Reads numbers only if the lengths are equal.
  friend bool operator==(const RowNumbers& a, const RowNumbers& b) {
    return a.first_ == b.first_ && (a.data_.size() == 0 || a.data_.on_host() == b.data_.on_host());
  }

 private:
  void lay_out(const std::vector<std::int64_t>& counts) {
    first_.assign(1, 0);
    for (const std::int64_t n : counts) first_.push_back(first_.back() + n);
  }
  // In CPU memory: rows move up, the last one first.
  void append_here(const RowNumbers& later, const std::vector<std::int64_t>& counts) {
    const std::vector<std::int64_t> old = first_;
    lay_out(counts);
    data_.resize(first_.back());
    for (std::int64_t r = rows() - 1; r >= 0; --r) {
      const std::int64_t begin = old[static_cast<std::size_t>(r)], n = old[static_cast<std::size_t>(r + 1)] - begin;
      std::memmove(row(r), data_.data() + begin, static_cast<std::size_t>(n) * sizeof(T));
      std::copy_n(later.row(r), later.count(r), row(r) + n);
    }
  }
  // Neighbouring ranges in one copy.
  void copy(std::span<const Range> ranges) {
    std::vector<cuda::CopyRange> copies;
    T* to = data_.data();
    for (const Range& range : ranges) {
      if (range.count == 0) continue;
      const std::int64_t bytes = range.count * std::int64_t{sizeof(T)};
      if (!copies.empty() &&
          static_cast<const char*>(copies.back().from) + copies.back().bytes == reinterpret_cast<const char*>(range.from))
        copies.back().bytes += bytes;
      else
        copies.push_back({to, range.from, bytes});
      to += range.count;
    }
    data_.memory().copy_ranges(copies);
  }

  TensorArray<T> data_;
  std::vector<std::int64_t> first_{0};  // [rows + 1]
};

}  // namespace kvlab
