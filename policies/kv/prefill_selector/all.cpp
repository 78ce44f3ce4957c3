#include "base/error.h"
#include "policies/kv/prefill_selector/prefill_selector.h"

namespace kvlab {

namespace {

class AllOfPrompt final : public PrefillSelector {
 public:
  explicit AllOfPrompt(Params&) {}
  [[nodiscard]] bool is_dense(std::int32_t) const override { return true; }
  [[nodiscard]] bool selects_all() const override { return true; }
  std::int64_t attend(const PromptChunk&) override { throw InternalError("a dense layer's prompt is the model's own attention"); }
};

KVLAB_REGISTER(PrefillSelector, AllOfPrompt, "all", "a prompt's queries attend to every token before them",
               "Vaswani et al. 2017, arXiv:1706.03762");

}  // namespace

}  // namespace kvlab
