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

// Picoseconds by basis; the cost model rounds once.
struct Price {
  std::array<double, kFootings> ps{};
  double beyond = 0;  // kExtrapolated and later, rounded together

  void add(double picoseconds, Footing footing) {
    ps[static_cast<std::size_t>(footing)] += picoseconds;
    if (footing >= Footing::kExtrapolated) beyond += picoseconds;
  }
  [[nodiscard]] double total() const { return ps[0] + ps[1] + beyond; }
  void hide(double picoseconds) {
    if (picoseconds <= 0) return;
    const double left = total() > picoseconds ? 1 - picoseconds / total() : 0;
    for (double& own : ps) own *= left;
    beyond *= left;
  }
};

inline Price price_of(double ps, Footing footing) {
  Price price;
  price.add(ps, footing);
  return price;
}

// Per layer of each class, and once per step.
struct TokenPrice {
  struct Layer {
    Price linear;   // includes experts
    Price experts;  // in linear: CostPart::kExperts
    Price mlp;      // in linear: feed-forward without experts
    Price norms;    // in linear: of hidden width
    Price collective;
    std::int64_t count = 0;
  };
  std::vector<Layer> layers;
  Price once, once_collective;
};

// All layers of a kind, piecewise linear in total cached tokens. A cell extends to the next knot or infinity; the first is at 0.
struct DecodeCurve {
  struct Knot {
    double kv_tokens, ps, ps_per_token;
    Footing footing;
  };
  std::vector<Knot> knots;
};

// Cached tokens, without new ones.
struct DecodeBatch {
  std::int64_t rows = 0, kv_tokens = 0, kv_max = 0, kv_min = 0;
  std::int64_t kv_squares = 0;
};
inline DecodeBatch batch_of(const StepShape& shape) {
  return {shape.decodes, shape.decode_kv_tokens, shape.decode_kv_max, shape.decode_kv_min, shape.decode_kv_squares};
}

// Uneven decode batches: time = mean + alpha * (max - mean) of even batches at mean and longest row. alpha is constant per bucket.
class SkewRule {
 public:
  virtual ~SkewRule() = default;
  // For steps without prompts.
  [[nodiscard]] virtual int bucket(const DecodeBatch& batch) const = 0;
  [[nodiscard]] virtual double alpha(int bucket) const = 0;
};

class StepPrices {
 public:
  virtual ~StepPrices() = default;
  [[nodiscard]] virtual TokenPrice tokens(std::int64_t tokens) const = 0;
  // One layer in a group (Parallel::dp > 1) for `tokens` of all ranks, and the exchange before and after. tokens() then has neither.
  [[nodiscard]] virtual Price experts(std::int64_t tokens) const = 0;
  [[nodiscard]] virtual Price exchange(const GroupTokens& group) const = 0;
  [[nodiscard]] virtual Price head(std::int64_t rows) const = 0;
  [[nodiscard]] virtual DecodeCurve decode_attention(std::size_t attention_class, std::int64_t rows) const = 0;
  // All layers, for prompts and decode rows.
  [[nodiscard]] virtual Price mixed_attention(const StepShape& shape) const = 0;
  [[nodiscard]] virtual Price policy(const PolicyOp& op) const = 0;
  [[nodiscard]] virtual Price send(std::int64_t tokens) const = 0;
  [[nodiscard]] virtual const SkewRule* skew() const { return nullptr; }
  [[nodiscard]] virtual Picoseconds host_time(const StepShape&) const { return {}; }
};

}  // namespace kvlab
