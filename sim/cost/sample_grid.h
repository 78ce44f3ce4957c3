#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/picoseconds.h"
#include "sim/cost/cost_model.h"

namespace kvlab {

// 1 to 4 axes, as a tree: each value has its own values of the next axis. Linear between neighbours, first axis inwards; continues along
// the last two, never falling; level below the first.
class SampleGrid {
 public:
  static constexpr std::size_t kMaxAxes = 4;
  using Point = std::array<std::int64_t, kMaxAxes>;  // unused: 0
  struct Sample {
    Point at{};
    Picoseconds time{};
    double spread_frac = 0;  // 0: not recorded
  };
  struct Value {
    double ps = 0;
    Footing footing = Footing::kInside;
  };

  SampleGrid() = default;
  // Samples ascend strictly by `at`, which readers check.
  SampleGrid(std::size_t axes, std::vector<Sample> samples);

  [[nodiscard]] Value at(std::span<const double> point) const;
  [[nodiscard]] bool empty() const { return samples_.empty(); }
  [[nodiscard]] std::size_t axes() const { return axes_; }
  [[nodiscard]] const std::vector<Sample>& samples() const { return samples_; }
  // Values of the last axis below either neighbour of `point` (without its last axis), ascending. Times between are linear.
  [[nodiscard]] std::vector<std::int64_t> last_axis_knots(std::span<const double> point) const;

 private:
  struct Bracket {
    std::size_t low, high;
    double weight;  // of high
    Footing footing;
  };
  [[nodiscard]] Bracket bracket(std::size_t level, std::size_t begin, std::size_t end, double x) const;
  [[nodiscard]] Value descend(std::size_t level, std::size_t begin, std::size_t end, std::span<const double> point) const;
  void collect(std::size_t level, std::size_t begin, std::size_t end, std::span<const double> point,
               std::vector<std::int64_t>& knots) const;

  std::size_t axes_ = 0;
  std::vector<Sample> samples_;
  std::array<std::vector<double>, kMaxAxes> value_;             // by level; integers below 2^40
  std::array<std::vector<std::size_t>, kMaxAxes> first_child_;  // of node i, on level + 1; [i + 1] is the end
};

}  // namespace kvlab
