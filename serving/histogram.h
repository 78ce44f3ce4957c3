#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvlab {

// Counts of non-negative integers in bins of 1/256 octave; values below 512 are exact. A value counts as the middle of its bin, so a
// quantile is off by at most 1/512 = 0.2 %. An arithmetic progression costs one operation per bin, with the same counts as its members.
class LogHistogram {
 public:
  void add(std::int64_t value) {
    ++bin_at(value);
    ++total_;
    sum_ += value;
    if (value > max_) max_ = value;
  }
  void add(std::int64_t value, std::uint64_t count) {
    bin_at(value) += count;
    total_ += count;
    sum_ += static_cast<Wide>(value) * static_cast<Wide>(count);
    if (value > max_) max_ = value;
  }

  // first, first + step, ..., `terms` of them, each `count` times. step may be negative; no term is.
  void add_progression(std::int64_t first, std::int64_t step, std::int64_t terms, std::uint64_t count) {
    while (terms > 0) {
      std::int64_t run = terms;
      const std::size_t b = bin_of(first);
      if (step > 0) {
        const std::int64_t room = (bin_begin(b + 1) - 1 - first) / step + 1;
        if (room < run) run = room;
      } else if (step < 0) {
        const std::int64_t room = (first - bin_begin(b)) / -step + 1;
        if (room < run) run = room;
      }
      const std::int64_t last = first + step * (run - 1);
      if (b >= counts_.size()) grow(b);
      counts_[b] += count * static_cast<std::uint64_t>(run);
      total_ += count * static_cast<std::uint64_t>(run);
      sum_ += (static_cast<Wide>(first) + static_cast<Wide>(last)) * run / 2 * static_cast<Wide>(count);
      if (first > max_) max_ = first;
      if (last > max_) max_ = last;
      first = last + step;
      terms -= run;
    }
  }

  [[nodiscard]] std::uint64_t count() const { return total_; }
  [[nodiscard]] std::int64_t max() const { return max_; }
  [[nodiscard]] double mean() const { return total_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(total_); }

  // Linear between the order statistics around rank frac (n - 1); each is the middle of its bin, the last one exact.
  [[nodiscard]] double quantile(double frac) const {
    if (total_ == 0) return 0;
    const double rank = frac * static_cast<double>(total_ - 1);
    const auto below = std::min(static_cast<std::uint64_t>(rank), total_ - 1);
    std::size_t bin = 0;
    std::uint64_t behind = counts_[0];  // counts up to and with `bin`
    const auto order_statistic = [&](std::uint64_t k) {
      while (behind <= k) behind += counts_[++bin];
      const auto middle = (static_cast<double>(bin_begin(bin)) + static_cast<double>(bin_begin(bin + 1) - 1)) / 2;
      return k == total_ - 1 ? static_cast<double>(max_) : std::min(middle, static_cast<double>(max_));
    };
    const double low = order_statistic(below);
    if (below == total_ - 1) return low;
    return low + (rank - static_cast<double>(below)) * (order_statistic(below + 1) - low);
  }

 private:
  __extension__ using Wide = __int128;
  static constexpr int kSubBits = 8;
  std::uint64_t& bin_at(std::int64_t value) {
    const std::size_t b = bin_of(value);
    if (b >= counts_.size()) [[unlikely]]
      grow(b);
    return counts_[b];
  }
  [[gnu::noinline]] void grow(std::size_t bin) { counts_.resize(bin + 1, 0); }
  static std::size_t bin_of(std::int64_t value) {
    const auto v = static_cast<std::uint64_t>(value);
    if (v < (1U << kSubBits)) return static_cast<std::size_t>(v);
    const int shift = static_cast<int>(std::bit_width(v)) - kSubBits - 1;
    return (static_cast<std::size_t>(shift + 1) << kSubBits) + static_cast<std::size_t>((v >> shift) - (1U << kSubBits));
  }
  static std::int64_t bin_begin(std::size_t b) {
    if (b < (1U << kSubBits)) return static_cast<std::int64_t>(b);
    const std::size_t shift = (b >> kSubBits) - 1;
    return static_cast<std::int64_t>(((b & ((1U << kSubBits) - 1)) + (1U << kSubBits)) << shift);
  }
  std::vector<std::uint64_t> counts_;
  std::uint64_t total_ = 0;
  Wide sum_ = 0;
  std::int64_t max_ = 0;
};

// Merges equal neighbours into one call.
class HistogramRun {
 public:
  explicit HistogramRun(LogHistogram& to) : to_(to) {}
  HistogramRun(const HistogramRun&) = delete;
  HistogramRun& operator=(const HistogramRun&) = delete;
  ~HistogramRun() { flush(); }
  void add(std::int64_t value) {
    if (value != value_) {
      flush();
      value_ = value;
    }
    ++count_;
  }

 private:
  void flush() {
    if (count_ > 0) to_.add(value_, count_);
    count_ = 0;
  }
  LogHistogram& to_;
  std::int64_t value_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace kvlab
