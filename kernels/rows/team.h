#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/element.h"

namespace kvlab {

// Sums in the order of sixteen CPU lanes: the same bits everywhere.
KVLAB_BODY inline float fold_lanes(float (&lanes)[16]) {
  for (int width = 8; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

// Sum of f(i): lane_sum of kernels/lanes_cpu.h.
template <class F>
KVLAB_BODY float sum_in_lanes(std::int64_t n, F&& f) {
  float lanes[16] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) lanes[j] += f(i + j);
  for (int j = 0; i + j < n; ++j) lanes[j] += f(i + j);
  return fold_lanes(lanes);
}

// With two sets of lanes in turn, then the last n % 16: an inner product of Eigen.
template <class F>
KVLAB_BODY float sum_in_two_lanes(std::int64_t n, F&& f) {
  float even[16] = {}, odd[16] = {};
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32)
    for (int j = 0; j < 16; ++j) even[j] += f(i + j), odd[j] += f(i + 16 + j);
  for (int j = 0; j < 16; ++j) even[j] += odd[j];
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) even[j] += f(i + j);
  float sum = fold_lanes(even);
  for (; i < n; ++i) sum += f(i);
  return sum;
}

template <class X, class Y>
KVLAB_BODY float dot_in_lanes(const X& x, const Y& y, std::int64_t n) {
  return sum_in_lanes(n, [&](std::int64_t i) { return x[i] * y[i]; });
}

// A team of one thread. BlockTeam (kernels/device/cuda/block_team.cuh): a block. Every thread calls each function with the same arguments;
// all writes are visible after it.
class OneThread {
 public:
  static constexpr bool kOnDevice = false;
  explicit OneThread(float* room) : room_(room) {}

  // The row's scratch memory: room() floats, aligned to 16 bytes, not initialised.
  [[nodiscard]] float* room() const { return room_; }
  [[nodiscard]] double* doubles() const { return reinterpret_cast<double*>(room_); }

  // By one thread. The CPU adds in lanes; a thread of a block adds in order.
  template <class X, class Y>
  [[nodiscard]] float dot(const X& x, const Y& y, std::int64_t n) const {
    return dot_in_lanes(x, y, n);
  }

  // put(i, sum of term(of(i), c) over c in [0, width)) for i in [0, n), in any order, with the bits of sum_in_lanes: half a warp has its
  // sixteen lanes.
  template <class Of, class Term, class Put>
  void sums(std::int64_t n, std::int64_t width, Of&& of, Term&& term, Put&& put) const {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto x = of(i);
      put(i, sum_in_lanes(width, [&](std::int64_t c) { return term(x, c); }));
    }
  }
  // put(i, x . of(i)).
  template <class X, class Of, class Put>
  void dots(std::int64_t n, std::int64_t width, const X& x, Of&& of, Put&& put) const {
    const auto product = [&](const auto& y, std::int64_t c) { return x[c] * y[c]; };
    sums(n, width, of, product, put);
  }

  // f(i) for i in [0, n), in any order.
  template <class F>
  void each(std::int64_t n, F&& f) const {
    for (std::int64_t i = 0; i < n; ++i) f(i);
  }
  // f() by one thread.
  template <class F>
  void once(F&& f) const {
    f();
  }
  // `total` + sum of f(i). The CPU adds in order, blocks add partial sums of threads.
  template <class T = float, class F>
  [[nodiscard]] T sum(std::int64_t n, F&& f, T total = T{}) const {
    for (std::int64_t i = 0; i < n; ++i) total += f(i);
    return total;
  }
  // At least `least`.
  template <class T, class F>
  [[nodiscard]] T max(std::int64_t n, T least, F&& f) const {
    for (std::int64_t i = 0; i < n; ++i) least = std::max<T>(least, f(i));
    return least;
  }
  // put(k, i) for each i with holds(i), k = number of earlier ones. Returns their number.
  template <class Holds, class Put>
  std::int64_t pack(std::int64_t n, Holds&& holds, Put&& put) const {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < n; ++i)
      if (holds(i)) put(count++, i);
    return count;
  }
  // Stable sort of the indices [0, n).
  template <class Before>
  void sort(std::int32_t n, std::int32_t* order, Before&& before) const {
    std::iota(order, order + n, 0);
    std::stable_sort(order, order + n, before);
  }
  // put(i) for the `count` largest f(i), in any order. Ties go to the lower index; NaN counts as -infinity.
  template <class F, class Put>
  void best(std::int32_t n, std::int32_t count, F&& f, Put&& put) const {
    std::vector<std::int32_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    const auto rank = [&](std::int32_t i) { return std::isnan(f(i)) ? -INFINITY : f(i); };
    const auto cut = order.begin() + std::min(n, count);
    std::nth_element(order.begin(), cut, order.end(), [&](std::int32_t i, std::int32_t j) {
      const float x = rank(i), y = rank(j);
      return x != y ? x > y : i < j;
    });
    std::for_each(order.begin(), cut, put);
  }

 private:
  float* room_;
};

}  // namespace kvlab
