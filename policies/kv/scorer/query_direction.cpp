#include "policies/kv/scorer/key_dot/key_dot.h"
#include "policies/kv/scorer/step_arrays.h"
#include "policies/kv/scorer/top_direction/top_direction.h"

namespace kvlab {

namespace {

// Projection of keys on the main direction of queries, one per KV head. The method takes the direction from calibration data;
// without that it comes from the prompt's last queries (our definition). Q-Filters, Godey et al. 2025.
class QueryDirection final : public Scorer {
 public:
  explicit QueryDirection(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 128, 1, 1 << 16, "last prompt queries that the direction comes from")),
        iterations_(p.optional<std::int32_t>("iterations", 32, 1, 1 << 10, "steps of the power iteration")) {}
  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.window_queries = window_;
    return needs;
  }
  void score(LayerStep& step, float* scores) override {
    const KvRows& kv = step.kv;
    float* direction = step.ops.floats(static_cast<std::int64_t>(kv.num_rows) * kv.head_dim);
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    step.ops(TopDirection{window.data(), kv.num_sequences(), kv.kv_heads, kv.group, kv.head_dim, iterations_, direction});
    step.ops(KeyDot{kv, direction, 1.0F, scores});
  }
  [[nodiscard]] bool comparable_across_heads() const override { return false; }

 private:
  std::int32_t window_, iterations_;
};

KVLAB_REGISTER(Scorer, QueryDirection, "query_direction", "projection of keys on the main direction of queries",
               "Q-Filters: Godey et al. 2025, arXiv:2503.02812");

}  // namespace

}  // namespace kvlab
