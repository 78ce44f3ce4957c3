#include <fmt/format.h>

#include <sstream>

#include "policies/kv/prompt_rewriter/kept_budget.h"
#include "policies/kv/prompt_rewriter/question_cosine/question_cosine.h"

namespace kvlab {

namespace {

// Scans up to the deepest of the heads, with a cache cut by each chunk's attention. Vectors are before RoPE; neighbors are kept too.
class Reform final : public PromptRewriter {
 public:
  explicit Reform(Params& p)
      : kept_(p, 8192, 256, 256),
        width_(p.optional<std::int32_t>("pool_width", 129, 1, 1 << 20, "neighbours of which the most similar counts, odd")),
        chunk_(p.optional<std::int32_t>("chunk_tokens", 32768, 1, 1 << 26, "of the scan")),
        cache_(p.optional<std::int32_t>("cache_tokens", 8192, 1, 1 << 26, "per layer that the scan's cache keeps after each chunk")),
        recent_(p.optional<std::int32_t>("recent_tokens", 128, 1, 1 << 20, "newest tokens that the scan's cache always keeps")) {
    if (width_ % 2 == 0) p.fail_at("pool_width", "'pool_width' must be odd, so that the neighbours are centred");
    read_vectors(p);
  }

  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    for (const Vectors& v : vectors_) {
      const std::int32_t heads = v.kind == Vectors::Kind::kQueries ? model.q_heads : model.kv_heads;
      if (v.layer >= model.num_layers || v.head >= heads)
        return fmt::format("'vectors' names head {} of layer {}, which the model does not have; give heads that find needles in it", v.head,
                           v.layer);
    }
    return "";
  }
  [[nodiscard]] Scan scan(const ModelShape& model) const override {
    std::int32_t layers = 0;
    for (const Vectors& v : reads(model)) layers = std::max(layers, v.layer + 1);
    return {layers, chunk_,
            fmt::format("{{recipe: citrus, budget_tokens: {}, trigger: {{per_chunk: {{block_tokens: {}, keep_chunk: true}}}}}}", cache_,
                        recent_)};
  }
  [[nodiscard]] std::vector<Vectors> reads(const ModelShape& model) const override {
    if (!vectors_.empty()) return vectors_;
    const std::int32_t layer = model.num_layers / 2;
    return {{layer, Vectors::Kind::kKeys, 0, true}, {layer, Vectors::Kind::kValues, 0, false}};
  }
  [[nodiscard]] std::int32_t kept(std::int32_t prompt_tokens, std::int32_t question_tokens) const override {
    return kept_.kept(prompt_tokens, question_tokens);
  }

  const std::int32_t* choose(const Scanned& scanned) override {
    const std::int32_t n = scanned.seq.end();
    float* const scores = scanned.ops.floats(n);
    scanned.ops(QuestionCosine{n, n - std::max(1, scanned.question_tokens()), scanned.model.head_dim, scanned.vectors, scores});
    return kept_.select(scanned, scores, {&width_, 1});
  }

 private:
  void read_vectors(Params& p) {
    std::istringstream words(
        p.text("vectors", "",
               "heads that find needles, LAYER.KIND.HEAD with a KIND of q, k or v; empty: keys and values of the first KV head, half way"));
    for (std::string word; words >> word;) {
      Vectors v;
      char kind = 0, dot = 0, other_dot = 0;
      std::istringstream parts(word);
      const bool is_read = static_cast<bool>(parts >> v.layer >> dot >> kind >> other_dot >> v.head) && parts.peek() == EOF;
      const std::size_t at = std::string_view("qkv").find(kind);
      if (!is_read || dot != '.' || other_dot != '.' || v.layer < 0 || v.head < 0 || at == std::string_view::npos)
        p.fail_at("vectors", fmt::format("'{}' in 'vectors': expected LAYER.KIND.HEAD, such as 5.k.1", word));
      v.kind = static_cast<Vectors::Kind>(at);
      v.before_rope = v.kind != Vectors::Kind::kValues;
      vectors_.push_back(v);
    }
  }

  KeptBudget kept_;
  std::int32_t width_, chunk_, cache_, recent_;
  std::vector<Vectors> vectors_;
};

KVLAB_REGISTER(PromptRewriter, Reform, "reform",
               "tokens whose vectors in a few heads are like the question's, computed anew without the others",
               "REFORM: Song et al. 2025, arXiv:2506.01215");

}  // namespace

}  // namespace kvlab
