#include <algorithm>

#include "kernels/score/protect_op.h"
#include "policies/kv/scorer/scorer_wrapper.h"

namespace kvlab {

namespace {

// Section 3.2 (text prior). Image tokens have one id; without it scores are unchanged.
class TextFirst final : public ScorerWrapper {
 public:
  explicit TextFirst(Params& p)
      : ScorerWrapper(p, "accumulated_attention", {.wrapper = "text_first"}),
        image_id_(p.optional<std::int32_t>("image_id", -1, -1, 1 << 30, "id of image tokens; -1: the prompt has none")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs = ScorerWrapper::needs();
    needs.token_ids |= image_id_ >= 0;
    return needs;
  }
  void score(LayerStep& step, float* scores) override {
    inner().score(step, scores);
    if (image_id_ < 0) return;
    const std::int32_t sequences = step.kv.num_sequences();
    std::int64_t* const first = step.ops.host_longs(sequences + 1);
    first[0] = 0;
    for (std::int32_t s = 0; s < sequences; ++s) first[s + 1] = first[s] + step.seqs[static_cast<std::size_t>(s)].end();
    std::int32_t* const ids = step.ops.computes() ? step.ops.host_ints(first[sequences]) : nullptr;
    for (std::int32_t s = 0; s < sequences && ids != nullptr; ++s)
      std::copy_n(step.in.ids[static_cast<std::size_t>(s)], first[s + 1] - first[s], ids + first[s]);
    step.ops(Protect{.kv = step.kv, .scores = scores, .lowers = true, .ids_first = first, .ids = ids, .id = image_id_});
  }

 private:
  std::int32_t image_id_;
};

KVLAB_REGISTER(Scorer, TextFirst, "text_first", "another score; text outranks image tokens", "LOOK-M: Wan et al. 2024, arXiv:2406.18139");

}  // namespace

}  // namespace kvlab
