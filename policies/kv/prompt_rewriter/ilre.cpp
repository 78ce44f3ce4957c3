#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <sstream>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "policies/kv/prefill_selector/prompt_rows.h"
#include "policies/kv/prompt_rewriter/prompt_rewriter.h"
#include "policies/kv/prompt_rewriter/question_cosine/question_cosine.h"
#include "policies/kv/prompt_rewriter/quota_select_op.h"

namespace kvlab {

namespace {

// The budget, or first and last tokens and the question if these are more.
class KeptBudget {
 public:
  KeptBudget(Params& p, std::int32_t tokens, std::int32_t first, std::int32_t last)
      : tokens_(p.optional<std::int32_t>("tokens", tokens, 1, 1 << 26, "of a prompt that stay, its ends and the question among them")),
        first_(p.optional<std::int32_t>("first_tokens", first, 0, 1 << 20, "of the prompt that always stay")),
        last_(p.optional<std::int32_t>("last_tokens", last, 0, 1 << 20, "before the question that always stay")) {}

  [[nodiscard]] std::int32_t kept(std::int32_t prompt_tokens, std::int32_t question_tokens) const {
    const std::int64_t ends = std::int64_t{first_} + last_ + std::max(1, question_tokens);
    return static_cast<std::int32_t>(std::min<std::int64_t>(prompt_tokens, std::max<std::int64_t>(tokens_, ends)));
  }
  // Kept tokens by scores [prompt_tokens], smoothed by these widths between the ends.
  [[nodiscard]] const std::int32_t* select(const PromptRewriter::Scanned& scanned, const float* scores,
                                           std::span<const std::int32_t> widths) const {
    const std::int32_t n = scanned.seq.end(), question = scanned.question_tokens();
    const std::int32_t stay = kept(n, question);
    std::int32_t* const index = scanned.ops.ints(stay);
    scanned.ops(QuotaSelect{n, first_, n - last_ - std::max(1, question), stay, widths.data(), static_cast<std::int32_t>(widths.size()),
                            scores, index});
    return index;
  }

 private:
  std::int32_t tokens_, first_, last_;
};

// Mean attention over heads and queries, smoothed by three widths. Earlier layers see sinks and a window.
class Ilre final : public PromptRewriter {
 public:
  explicit Ilre(Params& p)
      : depth_(
            p.optional<double>("depth_frac", 0.1, 0, 1, "of the layer whose keys are compared: that times the number of layers, rounded")),
        kept_(p, 8192, 16, 128),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 128, 0, 1 << 20, "first tokens that every chunk of the scan sees")),
        window_(p.optional<std::int32_t>("window_tokens", 4096, 1, 1 << 26, "newest tokens before a chunk of the scan that it sees")),
        chunk_(p.optional<std::int32_t>("chunk_tokens", 4096, 1, 1 << 26, "of the scan")) {
    std::istringstream words(p.text("pool_widths", "1 33 129", "odd numbers of neighbours, each with an equal share of the tokens"));
    for (std::int32_t width = 0; words >> width;) widths_.push_back(width);
    const bool all_odd = std::all_of(widths_.begin(), widths_.end(), [](std::int32_t w) { return w > 0 && w % 2 == 1; });
    if (!words.eof() || widths_.empty() || !all_odd) p.fail_at("pool_widths", "'pool_widths' are odd numbers, separated by spaces");
  }

  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    return model.num_layers > 1 ? "" : "the model has one layer, and none before it";
  }
  [[nodiscard]] Scan scan(const ModelShape& model) const override {
    return {layer_of(model) + 1, chunk_,
            fmt::format("{{recipe: streaming, budget_tokens: {}, scorer: {{recency: {{sinks_tokens: {}}}}}, trigger: per_chunk}}",
                        sinks_ + window_, sinks_)};
  }
  [[nodiscard]] std::vector<Vectors> reads(const ModelShape& model) const override {
    return {{layer_of(model), Vectors::Kind::kKeys, -1}, {layer_of(model), Vectors::Kind::kQueries, -1}};
  }
  [[nodiscard]] std::int32_t kept(std::int32_t prompt_tokens, std::int32_t question_tokens) const override {
    return kept_.kept(prompt_tokens, question_tokens);
  }

  const std::int32_t* choose(const Scanned& scanned) override {
    const std::int32_t n = scanned.seq.end(), asked = std::max(1, scanned.question_tokens());
    std::int64_t* const first = scanned.ops.host_longs(2);
    first[0] = 0, first[1] = n;
    float* const scores = scanned.ops.floats(n);
    Queries question{scanned.vectors[1], asked, n - asked};
    if (question.data != nullptr) question.data += std::int64_t{n - asked} * scanned.model.q_heads * scanned.model.head_dim;
    scanned.ops(AttentionStats{.kv = rows_over(scanned), .queries = &question, .votes = {.first = first, .out = scores}});
    return kept_.select(scanned, scores, widths_);
  }

 private:
  [[nodiscard]] std::int32_t layer_of(const ModelShape& model) const {
    return std::clamp(static_cast<std::int32_t>(std::lround(depth_ * model.num_layers)), 1, model.num_layers - 1);
  }
  static KvRows rows_over(const Scanned& scanned) {
    KvRows kv = dense_rows(scanned.ops, scanned.model, scanned.seq.end(), scanned.vectors[0], nullptr);
    kv.position = scanned.ops.host_ints(kv.pool_tokens);
    for (std::int32_t slot = 0; slot < kv.pool_tokens; ++slot) kv.position[slot] = slot / kv.kv_heads;
    return kv;
  }

  double depth_;
  KeptBudget kept_;
  std::int32_t sinks_, window_, chunk_;
  std::vector<std::int32_t> widths_;
};

KVLAB_REGISTER(PromptRewriter, Ilre, "ilre", "tokens that the question attends to in one early layer, computed anew without the others",
               "ILRe: Liang et al. 2025, arXiv:2508.17892");

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
