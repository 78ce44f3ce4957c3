#include "base/ceil_div.h"
#include "kernels/score/recent_attention_op.h"
#include "kernels/score/token_scores_op.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "policies/kv/selector/predict_blocks_op.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// All heads share the published network; without `weights`, a decaying sum (ours). History rows cover attended tokens; every few steps
// attend to all.
class AttentionPredictor final : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  explicit AttentionPredictor(Params& p)
      : block_(p.optional<std::int32_t>("block_tokens", 16, 1, 4096, "tokens of a block")),
        rows_(p.optional<std::int32_t>("history_steps", 64, 1, 1024, "last queries in the history")),
        own_{p.optional<std::int32_t>("sink_tokens", 64, 0, 1 << 20, "first tokens attended to, rounded down to blocks"),
             p.optional<std::int32_t>("recent_tokens", 64, 1, 1 << 20, "newest tokens attended to, rounded up to blocks"),
             p.optional<std::int32_t>("top_tokens", 896, 1, 1 << 24, "tokens of predicted blocks between them")},
        every_(p.optional<std::int32_t>("dense_every", 5, 0, 1 << 20, "steps from one that attends to all tokens to the next; 0: none")),
        decay_(p.optional<double>("decay", 0.9, 0, 1, "without weights: a query's share of the sum, to that of the query after it")) {}

  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .window_queries = rows_}; }
  void step_key(const SeqStep& seq, StepKey& key) const override {
    if (every_ == 0) return;
    const std::int32_t since = std::max(0, seq.end() - seq.prompt_tokens) % every_;
    key.add(since > 0 ? 1 : 0, since > 0 ? every_ - since : 1);
  }
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return Lengths::only(len); }
  [[nodiscard]] TakesWeights takes_weights() const override { return TakesWeights::kIfGiven; }
  void set_weights(const std::shared_ptr<const TrainedTensors>& weights) override {
    for (const Tensor& t : kTensors) weights->require(t.name);
    weights_ = weights;
  }
  [[nodiscard]] std::string refuses(const ModelShape&) const override {
    for (const Tensor& t : kTensors)
      if (weights_ != nullptr)
        if (const std::string why = weights_->refuses(t.name, t.shape, t.of); !why.empty()) return why;
    return "";
  }

  void update(LayerStep& step) override {
    const auto completes = [&](std::int32_t s) { return step.seqs[static_cast<std::size_t>(s)].completes_prompt(); };
    std::vector<Queries> window;
    for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s)
      window.push_back(completes(s) ? step.in.window[static_cast<std::size_t>(s)] : Queries{});
    if (std::none_of(window.begin(), window.end(), [](const Queries& q) { return q.count > 0; })) return;
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      if (completes(step.kv.sequence(r))) marks_.at(step, r) = {};
    push(step, window.data(), {});
  }

  Selection select(LayerStep& step) override {
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return is_dense(step, r) ? 0 : tail_of(step, r); });
    Selection chosen;
    if (!all_whole(step, tail)) chosen = predict(step, tail);
    push(step, step.in.step.data(), chosen);
    return chosen;
  }

  [[nodiscard]] TierBytes resident(const ModelShape&, const KvRows& kv, const TierBytes& held) const override {
    return held.with_gpu(sum_rows(kv, [&](std::int32_t r) { return 4LL * rows_ * ceil_div(kv.len[r], block_); }));
  }

 private:
  struct Tensor {
    const char* name;
    std::vector<std::int64_t> shape;
    const char* of;
  };
  inline static const std::vector<Tensor> kTensors{{"conv1.weight", {16, 1, 3, 3}, "outputs, inputs, steps, blocks"},
                                                   {"conv1.bias", {16}, "outputs"},
                                                   {"conv2.weight", {32, 16, 3, 3}, "outputs, inputs, steps, blocks"},
                                                   {"conv2.bias", {32}, "outputs"},
                                                   {"conv3.weight", {1, 32, 1}, "outputs, inputs, blocks"},
                                                   {"conv3.bias", {1}, "outputs"}};
  struct Mark {
    RowMark row;
    std::int32_t queries = 0;  // in the history, in total
  };

  [[nodiscard]] AttendedParts sizes(const LayerStep& step, std::int32_t r) const {
    return parts_of(own_, budget_, tokens_of(budget_, step, r));
  }
  // 0: attend to all.
  [[nodiscard]] std::int32_t tail_of(const LayerStep& step, std::int32_t r) const {
    const AttendedParts size = sizes(step, r);
    const std::int32_t blocks = std::min(step.kv.len[r] - size.recent, older_tokens(step, r)) / block_;
    return blocks - size.sinks / block_ <= std::max(2, chosen_blocks(size, step.kv.len[r], blocks)) ? 0 : blocks * block_;
  }
  [[nodiscard]] std::int32_t chosen_blocks(const AttendedParts& size, std::int32_t len, std::int32_t blocks) const {
    const std::int32_t all = size.sinks + size.recent + size.top;
    return std::max(1, (all - size.sinks / block_ * block_ - (len - blocks * block_)) / block_);
  }
  // From the prompt's end, so that work depends on lengths only. A row without history is dense.
  bool is_dense(LayerStep& step, std::int32_t r) {
    const SeqStep& seq = seq_of(step, r);
    const Mark& mark = marks_.at(step, r);
    if (mark.queries == 0 || !mark.row.grew_to(seq, step.kv.len[r])) return true;
    return every_ > 0 && std::max(0, seq.end() - seq.prompt_tokens) % every_ == 0;
  }

  float* const* history(const LayerStep& step) {
    return history_.rows(step, [&](std::int32_t r) { return std::int64_t{rows_} * ceil_div(step.kv.len[r], block_); });
  }

  Selection predict(LayerStep& step, const std::int32_t* tail) {
    const std::int32_t n = step.kv.num_rows;
    PredictBlocks predict{.num_rows = n, .begin = per_row(step, [&](std::int32_t r) { return sizes(step, r).sinks / block_; })};
    predict.first = prefix_sums(step, [&](std::int32_t r) { return tail[r] == 0 ? 0 : tail[r] / block_ - predict.begin[r]; });
    predict.next = per_row(step, [&](std::int32_t r) { return marks_.at(step, r).queries % rows_; });
    predict.history_rows = rows_;
    predict.history = history(step);
    predict.has_network = weights_ != nullptr;
    predict.decay = static_cast<float>(decay_);
    if (predict.has_network && step.ops.computes()) {
      const float** const to[] = {&predict.w1, &predict.b1, &predict.w2, &predict.b2, &predict.w3, &predict.b3};
      for (std::size_t i = 0; i < kTensors.size(); ++i) *to[i] = weights_->floats(kTensors[i].name).data();
    }
    predict.scores = step.ops.floats(predict.first[n]);
    step.ops(predict);
    const std::int32_t* keep =
        per_row(step, [&](std::int32_t r) { return tail[r] == 0 ? 0 : chosen_blocks(sizes(step, r), step.kv.len[r], tail[r] / block_); });
    const UnitLists lists = best_units(step, predict.first, predict.scores, keep);
    traffic_.track(step, lists);
    const std::int32_t* base = per_row(step, [&](std::int32_t r) { return predict.begin[r] * block_; });
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return tail[r] == 0 ? 0 : base[r]; });
    return expand(step, {.lists = lists, .unit_tokens = block_, .base = base, .head = head, .tail = tail});
  }

  void push(LayerStep& step, const Queries* queries, const Selection& chosen) {
    const std::int32_t n = step.kv.num_rows;
    RecentAttention push{step.kv, queries, RecentAttention::Kind::kBlocks, rows_};
    push.fresh = per_row(step, [&](std::int32_t r) {
      Mark& mark = marks_.at(step, r);
      const bool goes_on = mark.queries > 0 && mark.row.grew_to(seq_of(step, r), step.kv.len[r]);
      if (!goes_on) mark.queries = 0;
      return goes_on ? 0 : 1;
    });
    push.start = per_row(step, [&](std::int32_t r) { return marks_.at(step, r).queries % rows_; });
    push.lists_tokens = chosen.index_first != nullptr;
    push.index_first = chosen.index_first, push.index = chosen.index;
    push.block_tokens = block_;
    push.history = history(step);
    step.ops(push);
    for (std::int32_t r = 0; r < n; ++r)
      if (const std::int32_t count = queries[step.kv.sequence(r)].count; count > 0)
        marks_.at(step, r) = {{step.kv.len[r], seq_of(step, r).end()}, marks_.at(step, r).queries + count};
  }

  std::int32_t block_, rows_;
  AttendedParts own_;
  std::int32_t every_;
  double decay_;
  std::shared_ptr<const TrainedTensors> weights_;
  PerRow<Mark> marks_{*this};
  RowMemory<float> history_{*this};
};

KVLAB_REGISTER(Selector, AttentionPredictor, "attention_predictor", "blocks whose attention is predicted from that of the last steps",
               "AttentionPredictor: Yang et al. 2025, arXiv:2502.04077");

// Half of the budget each for newest and older tokens. Unread tokens keep older probabilities.
class Alisa final : public Budgeted<TierSelector> {
 public:
  explicit Alisa(Params& p)
      : budget_frac_(p.optional<double>("budget_frac", 0.2, 0.0001, 1, "share of the row attended to")),
        rows_(p.optional<std::int32_t>("row_tokens", 8, 1, 128, "last rows of attention that are summed up")) {}

  [[nodiscard]] std::int32_t num_words() const override { return rows_ + 1; }

  [[nodiscard]] Lower lower(std::int32_t) const override { return Lower::kKeysAndValues; }

  void update(LayerStep& step) override {
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
    const auto decodes = [](const SeqStep& seq) { return seq.decoding(); };
    if (!std::all_of(step.seqs.begin(), step.seqs.end(), decodes)) push(step, {}, false);  // in decode, after select()
  }

  Selection select(LayerStep& step) override {
    const std::int32_t* len = step.kv.len;
    const std::int32_t* tail = per_row(
        step, [&](std::int32_t r) { return std::min(older_tokens(step, r), len[r] - recent(len[r], tokens_of(budget_, step, r))); });
    const std::int32_t* keep = per_row(
        step, [&](std::int32_t r) { return std::clamp(attended(len[r], tokens_of(budget_, step, r)) - (len[r] - tail[r]), 0, tail[r]); });
    const std::int64_t* older = prefix_sums(step, [&](std::int32_t r) { return tail[r]; });
    Selection selection;
    if (traffic_.reads_all(step, keeps_all(step, older, keep))) {
      step.fetch(selection);
      push(step, {}, false);
      return selection;
    }
    float* scores = step.ops.floats(step.kv.total());
    step.ops(TokenScores{step.kv, TokenScores::Kind::kWordSum, first_word(), 0, nullptr, nullptr, scores, rows_});  // section IV-A
    const std::int32_t* head = per_row(step, [](std::int32_t) { return 0; });
    mask_ends(step, step.kv.first, head, tail, scores);
    const UnitLists lists = best_units(step, step.kv.first, scores, keep);
    selection = expand(step, {.lists = lists, .tail = tail});
    traffic_.track(step, lists, lists_of(selection), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    step.fetch(selection);
    push(step, selection, true);
    return selection;
  }

  [[nodiscard]] TierBytes resident(const ModelShape&, const KvRows& kv, const TierBytes& held) const override {
    const auto on_gpu = sum_rows(kv, [&](std::int32_t r) { return std::min(kv.len[r], attended(kv.len[r], budget_.of(kv.len[r]))); });
    return keep_on_gpu(held, on_gpu, kv.total());
  }

 private:
  [[nodiscard]] std::int32_t attended(std::int32_t len, std::int32_t budget) const {
    return budget > 0 ? budget : std::max(1, static_cast<std::int32_t>(budget_frac_ * len));
  }
  [[nodiscard]] std::int32_t recent(std::int32_t len, std::int32_t budget) const {
    return std::min(len, std::max(1, attended(len, budget) / 2));
  }

  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    const std::int32_t len = step.kv.len[r], budget = tokens_of(budget_, step, r);
    return attended(len, budget) >= len ? 0 : len - recent(len, budget);
  }

  void push(LayerStep& step, const Selection& selection, bool lists) {
    step.ops(RecentAttention{.kv = step.kv,
                             .queries = step.in.step.data(),
                             .steps = rows_,
                             .lists_tokens = lists,
                             .index_first = selection.index_first,
                             .index = selection.index,
                             .first_word = first_word()});
  }

  double budget_frac_;
  std::int32_t rows_;
};

KVLAB_REGISTER(Selector, Alisa, "alisa",
               "the newest tokens and those that the last rows of attention favoured; the others wait on the host",
               "ALISA: Zhao et al. 2024, arXiv:2403.17312, section IV");

}  // namespace

}  // namespace kvlab
