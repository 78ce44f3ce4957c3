#include "policies/kv/scorer/lower_images/lower_images.h"
#include "policies/kv/scorer_wrapper.h"

namespace kvlab {

namespace {

// Another score, changed so that all text outranks all images: image tokens are dropped first. LOOK-M, Wan et al. 2024, section 3.2 (text
// prior). Image tokens are those of one id, the token id that a tokenizer writes for each image; without it the other score is passed on
// unchanged.
class TextFirst final : public ScorerWrapper {
 public:
  explicit TextFirst(Params& p)
      : ScorerWrapper(p, "accumulated_attention"),
        image_id_(p.optional<std::int32_t>("image_id", -1, -1, 1 << 30, "id of image tokens; -1: the prompt has none")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs = ScorerWrapper::needs();
    if (image_id_ >= 0) needs.token_ids = needs.cpu_only = true;
    return needs;
  }
  void score(LayerStep& step, float* scores) override {
    inner().score(step, scores);
    if (image_id_ >= 0) step.ops(LowerImages{step.kv, step.in.ids.data(), image_id_, scores});
  }

 private:
  std::int32_t image_id_;
};

KVLAB_REGISTER(Scorer, TextFirst, "text_first", "another score; text outranks image tokens", "LOOK-M: Wan et al. 2024, arXiv:2406.18139");

}  // namespace

}  // namespace kvlab
