#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/cost/cost_model.h"

namespace kvlab {

// A time in picoseconds, split by its basis. Real-valued: the cost model rounds once, when it fills its caches.
struct Price {
  std::array<double, kFootings> ps{};
  double beyond = 0;  // the part outside of tables, from kExtrapolated on; rounded as one, so that its split changes no step's time

  void add(double picoseconds, Footing footing) {
    ps[static_cast<std::size_t>(footing)] += picoseconds;
    if (footing >= Footing::kExtrapolated) beyond += picoseconds;
  }
  [[nodiscard]] double total() const { return ps[0] + ps[1] + beyond; }
  // Leaves what takes longer than `picoseconds` of other work at the same time.
  void hide(double picoseconds) {
    if (picoseconds <= 0) return;
    const double left = total() > picoseconds ? 1 - picoseconds / total() : 0;
    for (double& own : ps) own *= left;
    beyond *= left;
  }
};

// The cost of a step's tokens outside attention: of one layer of each class, and once per step.
struct TokenPrice {
  struct Layer {
    Price linear;   // experts included
    Price experts;  // of it, those operations that CostPart::kExperts has
    Price mlp;      // of it, the feed-forward part of layers without experts
    Price norms;    // of it, the norms of hidden width
    Price collective;
    std::int64_t count = 0;  // layers of the class
  };
  std::vector<Layer> layers;
  Price once, once_collective;
};

// Decode attention of all layers of a kind for a fixed number of rows, piecewise linear in their total of cached tokens. A cell runs
// from its knot to the next one; the last has no end. The first knot is at 0.
struct DecodeCurve {
  struct Knot {
    double kv_tokens, ps, ps_per_token;
    Footing footing;
  };
  std::vector<Knot> knots;
};

// A decode batch by its rows' cached tokens, each row's own new token excluded.
struct DecodeBatch {
  std::int64_t rows = 0, kv_tokens = 0, kv_max = 0, kv_min = 0;
  std::int64_t kv_squares = 0;  // sum of squares: the spread
};
inline DecodeBatch batch_of(const StepShape& shape) {
  return {shape.decodes, shape.decode_kv_tokens, shape.decode_kv_max, shape.decode_kv_min, shape.decode_kv_squares};
}

// How much an uneven decode batch costs beyond an even one: time = mean + alpha * (max - mean), where mean and max are the
// times of even batches at the mean and at the longest row. Batches of one bucket have one alpha.
class SkewRule {
 public:
  virtual ~SkewRule() = default;
  // The bucket of a step without prompts.
  [[nodiscard]] virtual int bucket(const DecodeBatch& batch) const = 0;
  [[nodiscard]] virtual double alpha(int bucket) const = 0;
};

// The parts a step's time is made of: from measured tables, from a roofline, or from both.
class StepPrices {
 public:
  virtual ~StepPrices() = default;
  [[nodiscard]] virtual TokenPrice tokens(std::int64_t tokens) const = 0;
  // Prices of one layer with experts for a rank in a group (Parallel::dp > 1): the experts, which take `tokens` of all ranks, and the
  // exchange of the tokens before and after them. tokens() has neither then.
  [[nodiscard]] virtual Price experts(std::int64_t tokens) const = 0;
  [[nodiscard]] virtual Price exchange(const GroupTokens& group) const = 0;
  [[nodiscard]] virtual Price head(std::int64_t rows) const = 0;
  // For one of the model's attention_classes, by its index.
  [[nodiscard]] virtual DecodeCurve decode_attention(std::size_t attention_class, std::int64_t rows) const = 0;
  // Attention of all layers for a step that has prompts, and maybe decode rows too.
  [[nodiscard]] virtual Price mixed_attention(const StepShape& shape) const = 0;
  [[nodiscard]] virtual Price policy(const PolicyOp& op) const = 0;
  // One pipeline stage hands its activations to the next.
  [[nodiscard]] virtual Price send(std::int64_t tokens) const = 0;
  [[nodiscard]] virtual const SkewRule* skew() const { return nullptr; }
  [[nodiscard]] virtual Picoseconds host_time(const StepShape&) const { return {}; }
};

}  // namespace kvlab
