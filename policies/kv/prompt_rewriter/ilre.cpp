#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include "kernels/attention/attention_stats/attention_stats.h"
#include "policies/kv/prefill_selector/prompt_rows.h"
#include "policies/kv/prompt_rewriter/kept_budget.h"

namespace kvlab {

namespace {

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

}  // namespace

}  // namespace kvlab
