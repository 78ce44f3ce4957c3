#include "policies/kv/scorer/scorer.h"
#include "policies/kv/scorer/step_arrays.h"

namespace kvlab {

namespace {

// The paper's static half; mean over the group. Ours: sets per KV head, limited queries.
class PeakAttention final : public Scorer {
 public:
  explicit PeakAttention(Params& p)
      : share_(p.optional<double>("queries_frac", 0.2, 0.001, 1, "last queries of the prompt that are looked at")),
        window_(p.optional<std::int32_t>("window_tokens", 256, 1, 4096, "the most of them")) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  // No row becomes empty.
  [[nodiscard]] Protected protects() const override { return {0, 1}; }

  void score(LayerStep& step, float* scores) override {
    step.ops.zero(scores, step.kv.total());
    std::vector<Queries> last;
    for (std::size_t s = 0; s < step.seqs.size(); ++s) {
      const auto share = static_cast<std::int32_t>(share_ * step.seqs[s].prompt_tokens);
      last.push_back(last_queries(step.in.window.subspan(s, 1), std::clamp(share, 1, window_), step.model).front());
    }
    step.ops(AttentionStats{.kv = step.kv, .queries = last.data(), .wants_sum = false, .wants_max = true, .max = scores});
  }

 private:
  double share_;
  std::int32_t window_;
};

KVLAB_REGISTER(Scorer, PeakAttention, "peak_attention", "the most attention that one of the prompt's last queries pays",
               "MPCache: Zeng et al. 2025, arXiv:2501.06807");

}  // namespace

}  // namespace kvlab
