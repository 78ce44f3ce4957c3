#include "policies/kv/scorer/chunk_attention.h"
#include "policies/kv/scorer/scorer.h"

namespace kvlab {

namespace {

class NoncausalChunk final : public Scorer {
 public:
  explicit NoncausalChunk(Params& p) : attention_(p) {}
  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void observe(LayerStep& step) override { attention_.observe(step, first_word()); }
  void score(LayerStep& step, float* scores) override { attention_.score(step, first_word(), scores); }

 private:
  ChunkAttentionScore attention_;
};

KVLAB_REGISTER(Scorer, NoncausalChunk, "noncausal_chunk", "attention received inside chunks without a causal mask, times the value's norm",
               "Compactor: Chari and Van Durme 2025, arXiv:2507.08143");

}  // namespace

}  // namespace kvlab
