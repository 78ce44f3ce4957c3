#include "policies/kv/scorer/gated_chunks_op.h"
#include "policies/kv/scorer/scorer_wrapper.h"

namespace kvlab {

namespace {

class EntropyChunks final : public ScorerWrapper {
 public:
  explicit EntropyChunks(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "entropy_chunks", .refines = false, .adds_scores = true}),
        chunk_(p.optional<std::int32_t>("chunk_tokens", 10, 2, 1 << 20, "tokens of a chunk")),
        peaked_(p.optional<std::int32_t>("peaked_tokens", 4, 1, 1 << 20, "tokens kept of a chunk whose scores are concentrated")) {
    if (peaked_ >= chunk_) p.fail_at("peaked_tokens", "'peaked_tokens' must be smaller than 'chunk_tokens'");
  }
  // Protected in chunks, with the largest score + 1.
  [[nodiscard]] Protected protects() const override { return {}; }
  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kFound; }

  void score(LayerStep& step, float* scores) override {
    inner().score(step, scores);
    protect_ends(step, inner().protects(), scores, true);
  }
  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    step.ops(GatedChunks{step.kv, chunk_, peaked_, keep, scores});
  }

 private:
  std::int32_t chunk_, peaked_;
};

KVLAB_REGISTER(Scorer, EntropyChunks, "entropy_chunks",
               "chunks of neighbouring tokens, of those with concentrated scores a few tokens alone",
               "kvpress's EntropyGatedChunkKVPress, version 0.5.5, over ChunkKV: Liu et al. 2025, arXiv:2502.00299");

}  // namespace

}  // namespace kvlab
