#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/cost/cost_model.h"

namespace kvlab {

// Picoseconds by basis, real-valued; the cost model rounds once.
struct Price {
  std::array<double, kFootings> ps{};
  double beyond = 0;  // kExtrapolated and later, rounded together, so their split changes no step's time

  void add(double picoseconds, Footing footing) {
    ps[static_cast<std::size_t>(footing)] += picoseconds;
    if (footing >= Footing::kExtrapolated) beyond += picoseconds;
  }
  [[nodiscard]] double total() const { return ps[0] + ps[1] + beyond; }
  // Keeps the part that exceeds concurrent work of `picoseconds`.
  void hide(double picoseconds) {
    if (picoseconds <= 0) return;
    const double left = total() > picoseconds ? 1 - picoseconds / total() : 0;
    for (double& own : ps) own *= left;
    beyond *= left;
  }
};

// Cost of tokens outside attention: per layer of each class, and once per step.
struct TokenPrice {
  struct Layer {
    Price linear;   // includes experts
    Price experts;  // part of linear: CostPart::kExperts
    Price mlp;      // part of linear: feed-forward of layers without experts
    Price norms;    // part of linear: norms of hidden width
    Price collective;
    std::int64_t count = 0;
  };
  std::vector<Layer> layers;
  Price once, once_collective;
};

// Decode attention of a number of rows over all layers of a kind, piecewise linear in total cached tokens. A cell extends from its knot to
// the next or infinity; the first is at 0.
struct DecodeCurve {
  struct Knot {
    double kv_tokens, ps, ps_per_token;
    Footing footing;
  };
  std::vector<Knot> knots;
};

// Decode rows by cached tokens, without new tokens.
struct DecodeBatch {
  std::int64_t rows = 0, kv_tokens = 0, kv_max = 0, kv_min = 0;
  std::int64_t kv_squares = 0;
};
inline DecodeBatch batch_of(const StepShape& shape) {
  return {shape.decodes, shape.decode_kv_tokens, shape.decode_kv_max, shape.decode_kv_min, shape.decode_kv_squares};
}

// Extra cost of uneven decode batches: time = mean + alpha * (max - mean) of even batches at mean and longest row. alpha is constant per
// bucket.
class SkewRule {
 public:
  virtual ~SkewRule() = default;
  // Bucket of a step without prompts.
  [[nodiscard]] virtual int bucket(const DecodeBatch& batch) const = 0;
  [[nodiscard]] virtual double alpha(int bucket) const = 0;
};

class StepPrices {
 public:
  virtual ~StepPrices() = default;
  [[nodiscard]] virtual TokenPrice tokens(std::int64_t tokens) const = 0;
  // A layer's experts in a group (Parallel::dp > 1) for `tokens` of all ranks, and the exchange of tokens before and after. tokens() then
  // has neither.
  [[nodiscard]] virtual Price experts(std::int64_t tokens) const = 0;
  [[nodiscard]] virtual Price exchange(const GroupTokens& group) const = 0;
  [[nodiscard]] virtual Price head(std::int64_t rows) const = 0;
  // attention_class: index into the model's attention_classes.
  [[nodiscard]] virtual DecodeCurve decode_attention(std::size_t attention_class, std::int64_t rows) const = 0;
  // Attention over all layers for a step with prompts and possibly decode rows.
  [[nodiscard]] virtual Price mixed_attention(const StepShape& shape) const = 0;
  [[nodiscard]] virtual Price policy(const PolicyOp& op) const = 0;
  [[nodiscard]] virtual Price send(std::int64_t tokens) const = 0;
  [[nodiscard]] virtual const SkewRule* skew() const { return nullptr; }
  [[nodiscard]] virtual Picoseconds host_time(const StepShape&) const { return {}; }
};

}  // namespace kvlab
