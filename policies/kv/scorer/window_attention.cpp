#include <fmt/format.h>

#include "base/error.h"
#include "kernels/attention/window_moments/window_moments.h"
#include "kernels/score/reduce_heads_op.h"
#include "policies/kv/allocator/counts.h"
#include "policies/kv/scorer/chosen_heads/chosen_heads.h"
#include "policies/kv/scorer/score_pool.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// The softmax sees all keys; the window is protected.
class WindowAttention final : public Scorer {
 public:
  explicit WindowAttention(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that vote; their tokens stay")),
        pool_(p, ScorePooling::kAvg, 7),
        group_(p.choice("group", {{"mean", AttentionStats::Group::kMean}, {"max", AttentionStats::Group::kMax}},
                        AttentionStats::Group::kMean, "how query heads that share a KV head vote")),
        mean_(p.choice("queries", {{"sum", false}, {"mean", true}}, false,
                       "their attention is summed, or that is divided by window_tokens")) {}
  [[nodiscard]] bool keeps_no_state() const override { return true; }

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void score(LayerStep& step, float* scores) override {
    step.ops.zero(scores, step.kv.total());
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    step.ops(AttentionStats{.kv = step.kv, .queries = window.data(), .group = group_, .sum = scores});
    if (mean_)
      step.ops(ScoreMap{step.kv.num_rows, step.kv.first, ScoreMap::Kind::kPlus, scores, 1.0F / static_cast<float>(window_), 0.0F, false,
                        nullptr, nullptr, scores});
    const auto newest = [&](std::int32_t r) { return window[static_cast<std::size_t>(step.kv.sequence(r))].count; };
    pool_.smooth(step, newest, scores);
  }

 private:
  std::int32_t window_;
  ScorePool pool_;
  AttentionStats::Group group_;
  bool mean_;
};

KVLAB_REGISTER(Scorer, WindowAttention, "window_attention", "attention received from the prompt's last queries, pooled over neighbours",
               "SnapKV: Li et al. 2024, arXiv:2404.14469, eq. 1-3");

// Mean + gamma * variance, smoothed.
class WindowMeanVariance final : public Scorer {
 public:
  explicit WindowMeanVariance(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 32, 1, 4096, "last prompt queries that are looked at; their tokens stay")),
        gamma_(p.optional<float>("gamma", 200, 0, 1e6, "weight of the variance")),
        pool_(p, ScorePooling::kAvg, 5) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }

  void score(LayerStep& step, float* scores) override {
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    step.ops(WindowMoments{.kv = step.kv, .queries = window.data(), .wants_scores = true, .gamma = gamma_, .scores = scores});
    pool_.smooth(
        step, [&](std::int32_t) { return window_; }, scores);
  }

 private:
  std::int32_t window_;
  float gamma_;
  ScorePool pool_;
};

KVLAB_REGISTER(Scorer, WindowMeanVariance, "window_mean_variance",
               "mean and variance of the attention received from the prompt's last queries",
               "CAKE: Qin et al. 2025, arXiv:2503.12491, eq. 9");

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

// Queries are weighted by the number of tokens they see.
class QuestionAttention final : public Scorer {
  enum class Weigh : std::uint8_t { kVisible, kVisibleMinusOne, kNone };

 public:
  explicit QuestionAttention(Params& p)
      : window_(p.optional<std::int32_t>("max_question_tokens", 256, 1, 4096, "queries of a longer question vote only from its end")),
        weigh_(p.choice("weigh", {{"visible", Weigh::kVisible}, {"visible_minus_one", Weigh::kVisibleMinusOne}, {"none", Weigh::kNone}},
                        Weigh::kVisible, "factor on a query's attention: tokens that it sees, one less (as kvpress counts), or 1")) {}

  [[nodiscard]] Needs needs() const override { return {.window_queries = window_, .question = true}; }

  void score(LayerStep& step, float* scores) override {
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    std::vector<Queries> asked;
    const auto sequences = static_cast<std::int64_t>(step.seqs.size());
    const std::int32_t* zero = per_sequence(step, [](const SeqStep&) { return 0; });
    std::int32_t* begin = step.ops.host_ints(sequences);
    for (std::size_t s = 0; s < step.seqs.size(); ++s) {
      begin[s] = step.seqs[s].question_begin;
      if (begin[s] < 0)
        throw InputError("question_attention: sequence " + std::to_string(step.seqs[s].index) + " of the batch has no marked question");
      asked.push_back(queries_from(window[s], begin[s], step.model));
    }
    clear_scores(step, scores);
    step.ops(AttentionStats{.kv = step.kv,
                            .queries = asked.data(),
                            .weigh_by_visible = weigh_ != Weigh::kNone,
                            .visible_offset = weigh_ == Weigh::kVisibleMinusOne ? -1 : 0,
                            .sum = scores});
    step.ops(Protect{step.kv, zero, begin, scores});
  }

 private:
  std::int32_t window_;
  Weigh weigh_;
};

KVLAB_REGISTER(Scorer, QuestionAttention, "question_attention", "attention of the question's queries; the question stays",
               "FINCH: Corallo and Papotti 2024, arXiv:2408.00167");

// With all the step's queries: CItruS, standard mode; per KV head: SAGE-KV.
class LastQueryAttention final : public Scorer {
 public:
  explicit LastQueryAttention(Params& p)
      : whole_step_(p.choice("queries", {{"last", false}, {"step", true}}, false,
                             "whose attention counts: the newest query's, or all of the step's (a chunk's)")),
        shares_heads_(p.flag("share_heads", true, "one set per layer, by the mean over its heads; else one per KV head")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 0, 0, 1 << 20, "first tokens that are never evicted")),
        recent_(p.optional<std::int32_t>("recent_tokens", 0, 0, 1 << 20, "latest tokens that are never evicted")),
        recent_frac_(p.optional<double>("recent_frac", 0.0, 0.0, 1.0, "share of the budget for further latest tokens")) {}

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  // Heads are averaged by place.
  [[nodiscard]] bool is_order_free(const FewTokens& few) const override { return few.alike || !shares_heads_; }
  [[nodiscard]] Protected protects() const override { return {sinks_, recent_, false, recent_frac_}; }

  void score(LayerStep& step, float* scores) override {
    if (whole_step_) {
      sum_attention(step, step.in.step.data(), scores);
    } else {
      sum_attention(step, last_queries(step.in.step, 1, step.model).data(), scores);
    }
    if (shares_heads_) step.ops(ReduceHeads{step.kv, ReduceHeads::Kind::kMean, scores});
  }

 private:
  bool whole_step_, shares_heads_;
  std::int32_t sinks_, recent_;
  double recent_frac_;
};

KVLAB_REGISTER(Scorer, LastQueryAttention, "last_query_attention", "attention of the newest query, averaged over the layer's heads",
               "TOVA: Oren et al. 2024, arXiv:2401.06104");

// Heads come from `weights` (semantic [layers, q_heads]) or a list, or (ours) are those whose window attends most to middle tokens.
class RetrievalHeadWindow final : public Scorer {
 public:
  explicit RetrievalHeadWindow(Params& p)
      : window_(p.optional<std::int32_t>("window_tokens", 8, 1, 4096, "last prompt queries that vote; their tokens stay")),
        heads_(read_table(p, "heads", false, 0, 0, "query heads that retrieve, as LAYER.HEAD; layers without any find theirs online")),
        num_heads_(p.optional<std::int32_t>("heads_per_layer", 4, 1, 1024, "query heads chosen where none are listed")),
        sinks_(p.optional<std::int32_t>("sinks_tokens", 4, 0, 1 << 20, "first tokens that tell nothing about retrieval")),
        pool_(p, ScorePooling::kAvg, 5) {
    for (const TableEntry& e : heads_)
      if (e.head < 0) p.fail_at("heads", "'heads' names query heads: LAYER.HEAD");
  }

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer; }
  [[nodiscard]] Needs needs() const override { return {.window_queries = window_}; }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kIfGiven; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    if (!heads_.empty()) throw InputError("'heads' and 'weights' exclude each other: delete one of them");
    const std::vector<std::int64_t>& shape = weights->shape(kSemantic);
    if (shape.size() != 2) throw InputError(fmt::format("{}: tensor '{}' is no table [layers, query heads]", weights->name(), kSemantic));
    const auto per_layer = static_cast<std::size_t>(shape[1]);
    for (std::int32_t l = 0; l < shape[0]; ++l) {
      const std::span<const float> layer = weights->floats(kSemantic).subspan(static_cast<std::size_t>(l) * per_layer, per_layer);
      for (const std::int32_t head : largest(layer, static_cast<std::size_t>(num_heads_))) heads_.push_back({l, head, 0});
    }
    weights_ = weights;
  }
  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (weights_ != nullptr) return weights_->refuses(kSemantic, {model.num_layers, model.q_heads}, "layers, query heads");
    for (const TableEntry& e : heads_)
      if (e.layer >= model.num_layers || e.head >= model.q_heads)
        return fmt::format("'heads' names layer {} head {}, the model has {} layers of {} query heads", e.layer, e.head, model.num_layers,
                           model.q_heads);
    return "";
  }
  [[nodiscard]] Protected protects() const override { return {0, window_}; }
  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kFound; }

  void score(LayerStep& step, float* scores) override {
    const std::vector<Queries> window = last_queries(step.in.window, window_, step.model);
    const std::vector<std::int32_t> listed = heads_of(step.layer);
    ChosenHeads chosen;
    chosen.kv = step.kv;
    chosen.queries = window.data();
    chosen.finds_heads = listed.empty();
    chosen.heads = listed.empty() ? nullptr : listed.data();
    chosen.num_heads = listed.empty() ? std::min(num_heads_, step.model.q_heads) : static_cast<std::int32_t>(listed.size());
    chosen.sinks = sinks_, chosen.recent = window_;
    chosen.scores = scores;
    check_heads(chosen);
    step.ops(chosen);
    pool_.smooth(
        step, [&](std::int32_t) { return window_; }, scores);
  }

 private:
  static constexpr const char* kSemantic = "semantic";

  [[nodiscard]] std::vector<std::int32_t> heads_of(std::int32_t layer) const {
    std::vector<std::int32_t> listed;
    for (const TableEntry& e : heads_)
      if (e.layer == layer) listed.push_back(e.head);
    return listed;
  }

  std::int32_t window_;
  std::vector<TableEntry> heads_;
  std::shared_ptr<const TrainedTensors> weights_;
  std::int32_t num_heads_, sinks_;
  ScorePool pool_;
};

KVLAB_REGISTER(Scorer, RetrievalHeadWindow, "retrieval_head_window",
               "attention of the prompt's last queries in retrieval heads alone, for all KV heads alike",
               "CompressKV: Lin et al. 2025, arXiv:2508.02401");

}  // namespace

}  // namespace kvlab
