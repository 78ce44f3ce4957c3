#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>
#include <string>
#include <vector>

#include "base/text.h"
#include "kernels/score/head_scores_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/score_map_op.h"
#include "policies/kv/prompt_pruner/prompt_pruner.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// `stages`: "DEPTH=TOKENS ...": from this share of the depth on, layers compute this many prompt tokens, or, up to 1, this share. Layer 0
// computes all.
class PruneStages {
 public:
  PruneStages(Params& p, const std::string& fallback) {
    constexpr double kMostTokens = 1 << 24;
    std::istringstream words(
        p.text("stages", fallback, "DEPTH=TOKENS: from this share of the depth on, this many tokens (up to 1: share)"));
    for (std::string word; words >> word;) {
      Stage stage{};
      const std::size_t equals = word.find('=');
      const bool good = equals != std::string::npos && parse_real(word.substr(0, equals), stage.depth) &&
                        parse_real(word.substr(equals + 1), stage.tokens) && stage.depth > 0 && stage.depth < 1 && stage.tokens > 0 &&
                        stage.tokens <= kMostTokens;
      if (!good)
        p.fail_at("stages", fmt::format("'{}' in 'stages': expected DEPTH=TOKENS, a depth between 0 and 1 and a positive number of tokens "
                                        "(up to 1: a share of the prompt), as in '0.5=1024' or '0.33=0.6 0.5=0.4'",
                                        word));
      stages_.push_back(stage);
    }
    if (stages_.empty() && !p.is_describing()) p.fail_at("stages", "'stages' is empty; without pruning write 'prompt_pruner: none'");
  }

  // Left by a stage that begins at layer + 1; all if none does.
  [[nodiscard]] std::int32_t after(const ModelShape& model, std::int32_t layer, std::int32_t prompt_tokens) const {
    constexpr double kRounding = 1e-9;  // 2/3 of 9 layers are 6
    std::int32_t least = prompt_tokens;
    for (const Stage& stage : stages_) {
      const auto begin = std::max(1, static_cast<std::int32_t>(std::floor(stage.depth * model.num_layers + kRounding)));
      const double tokens = stage.tokens <= 1 ? std::floor(stage.tokens * prompt_tokens + kRounding) : std::floor(stage.tokens);
      if (begin == layer + 1) least = std::min<std::int32_t>(least, static_cast<std::int32_t>(std::max(1.0, tokens)));
    }
    return least;
  }

 private:
  struct Stage {
    double depth, tokens;
  };
  std::vector<Stage> stages_;
};

// Mean over heads.
class LastAttention final : public PromptPruner {
 public:
  explicit LastAttention(Params& p) : stages_(p, "0.3=0.7 0.6=0.5 0.9=0.3") {}

  [[nodiscard]] std::int32_t kept(const ModelShape& model, std::int32_t layer, std::int32_t tokens,
                                  std::int32_t prompt_tokens) const override {
    return std::min(tokens, stages_.after(model, layer, prompt_tokens));
  }

  void score(LayerStep& step, const std::int64_t* first, float* scores) override {
    step.ops(HeadScores{step.kv, step.in.step.data(), first, scores});
  }

 private:
  PruneStages stages_;
};

KVLAB_REGISTER(PromptPruner, LastAttention, "last_attention", "a few layers drop the tokens that the prompt's last token attends to least",
               "LazyLLM: Fu et al. 2024, arXiv:2407.14057, without its auxiliary cache");

// Mean over heads without a softmax, smoothed. The last token remains and counts as 0 for its neighbors.
class PromptDistill final : public PromptPruner {
 public:
  explicit PromptDistill(Params& p)
      : stages_(p, "0.4375=1024"), pool_(p.optional<std::int32_t>("pool_tokens", 5, 1, 1023, "neighbours averaged, odd; 1: none")) {
    if (pool_ % 2 == 0) p.fail_at("pool_tokens", "'pool_tokens' must be odd, so that the pool is centred");
  }

  [[nodiscard]] std::int32_t kept(const ModelShape& model, std::int32_t layer, std::int32_t tokens,
                                  std::int32_t prompt_tokens) const override {
    const std::int32_t left = stages_.after(model, layer, prompt_tokens);
    return left == prompt_tokens ? tokens : std::min(tokens, left + 1);
  }

  void score(LayerStep& step, const std::int64_t* first, float* scores) override {
    const std::int32_t sequences = step.kv.num_sequences();
    step.ops(HeadScores{step.kv, step.in.step.data(), first, scores, HeadScores::Kind::kLogits});
    if (pool_ == 1) return;
    const std::int32_t* end =
        per_row(step.ops, sequences, [&](std::int32_t s) { return static_cast<std::int32_t>(first[s + 1] - first[s]); });
    const std::int32_t* context = per_row(step.ops, sequences, [&](std::int32_t s) { return end[s] - 1; });
    step.ops(ScoreMap::fill(sequences, first, context, end, 0.0F, 0.0F, scores));
    step.ops(Pool1d{sequences, first, nullptr, context, scores, pool_, Pool1d::Kind::kAvg});
  }

 private:
  PruneStages stages_;
  std::int32_t pool_;
};

KVLAB_REGISTER(PromptPruner, PromptDistill, "prompt_distill", "one layer selects by the products of the prompt's last query with keys",
               "PromptDistill: Jin et al. 2025, arXiv:2503.23274");

// Ours: sizes, stages, and a block's score, its best unit's, mean over heads. First block and last tokens remain.
class SlimInfer final : public PromptPruner {
 public:
  explicit SlimInfer(Params& p)
      : stages_(p, "0.3334=0.6 0.5=0.4 0.6667=0.25"),
        unit_(p.optional<std::int32_t>("unit_tokens", 16, 1, 1 << 12, "tokens whose mean key is compared with the query")),
        units_(p.optional<std::int32_t>("units_per_block", 4, 1, 1 << 10, "units that are dropped together")),
        recent_(p.optional<std::int32_t>("recent_tokens", 256, 1, 1 << 20, "last tokens that always go on")) {}

  [[nodiscard]] Ends ends(std::int32_t prompt_tokens) const override {
    return {std::min(prompt_tokens, block()), prompt_tokens - std::min(prompt_tokens, block()) - blocks(prompt_tokens) * block()};
  }
  [[nodiscard]] std::int32_t kept(const ModelShape& model, std::int32_t layer, std::int32_t tokens,
                                  std::int32_t prompt_tokens) const override {
    const std::int32_t left = stages_.after(model, layer, prompt_tokens);
    if (left == prompt_tokens) return tokens;
    const Ends always = ends(prompt_tokens);
    const std::int32_t ends_tokens = always.first + always.last;
    return std::min(tokens, ends_tokens + std::max(0, left - ends_tokens) / block() * block());
  }

  void score(LayerStep& step, const std::int64_t* first, float* scores) override {
    const std::int32_t sequences = step.kv.num_sequences();
    step.ops(HeadScores{step.kv, step.in.step.data(), first, scores, HeadScores::Kind::kLogits});
    const auto ends_of = [&](std::int32_t s) { return ends(step.seqs[static_cast<std::size_t>(s)].end()); };
    const std::int32_t* begin = per_row(step.ops, sequences, [&](std::int32_t s) { return ends_of(s).first; });
    const std::int32_t* len = per_row(step.ops, sequences, [&](std::int32_t s) {
      return static_cast<std::int32_t>(first[s + 1] - first[s]) - ends_of(s).first - ends_of(s).last;
    });
    step.ops(Pool1d{sequences, first, begin, len, scores, block(), Pool1d::Kind::kBestUnit, false, unit_});
  }

 private:
  [[nodiscard]] std::int32_t block() const { return unit_ * units_; }
  [[nodiscard]] std::int32_t blocks(std::int32_t prompt_tokens) const { return std::max(0, prompt_tokens - block() - recent_) / block(); }

  PruneStages stages_;
  std::int32_t unit_, units_, recent_;
};

KVLAB_REGISTER(PromptPruner, SlimInfer, "slim_infer",
               "a few layers drop blocks of tokens whose units' mean keys match the last query least",
               "SlimInfer: Long et al. 2025, arXiv:2508.06447, from its abstract; the rest is our definition");

// Layer l keeps the share ratio + (1 - ratio) (cos(pi l / L) + 1) / 2 of its older tokens.
class PyramidInfer final : public PromptPruner {
 public:
  explicit PyramidInfer(Params& p)
      : ratio_(p.optional<double>("ratio", 0.9, 0.01, 1, "share that the deepest layer would keep; layer 0 keeps all")),
        recent_(p.optional<double>("recent_frac", 0.2, 0, 1, "share of the prompt, and one token more, that always goes on and votes")),
        least_(p.optional<std::int32_t>("least_tokens", 64, 0, 1 << 20, "a layer that would leave no more than this many drops none")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens that always go on")),
        last_weight_(p.optional<double>("last_weight", 1.2, 0, 100, "weight of the last vote; the first has 1, others are between")) {}

  [[nodiscard]] Ends ends(std::int32_t prompt_tokens) const override {
    return {sinks_, std::min(prompt_tokens, 1 + static_cast<std::int32_t>(std::floor(recent_ * prompt_tokens)))};
  }
  [[nodiscard]] std::int32_t kept(const ModelShape& model, std::int32_t layer, std::int32_t tokens,
                                  std::int32_t prompt_tokens) const override {
    const std::int32_t recent = ends(prompt_tokens).last, context = tokens - recent;
    const double share = ratio_ + (1 - ratio_) * (std::cos(std::numbers::pi * layer / model.num_layers) + 1) / 2;
    const auto left = static_cast<std::int32_t>(std::floor(context * share + 1e-9));
    return left > least_ ? left + recent : tokens;
  }

  void score(LayerStep& step, const std::int64_t* first, float* scores) override {
    std::vector<Queries> recent;
    for (std::size_t s = 0; s < step.seqs.size(); ++s)
      recent.push_back(last_queries(step.in.step.subspan(s, 1), ends(step.seqs[s].end()).last, step.model).front());
    step.ops(AttentionStats{.kv = step.kv,
                            .queries = recent.data(),
                            .votes = {.last_weight = static_cast<float>(last_weight_), .first = first, .out = scores}});
  }

 private:
  double ratio_, recent_;
  std::int32_t least_, sinks_;
  double last_weight_;
};

KVLAB_REGISTER(PromptPruner, PyramidInfer, "pyramid_infer", "every layer drops the context tokens that recent tokens attend to least",
               "PyramidInfer: Yang et al. 2024, arXiv:2405.12532");

}  // namespace

}  // namespace kvlab
