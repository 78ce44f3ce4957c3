#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/token_norms_op.h"
#include "kernels/select/column_basis/column_basis.h"
#include "kernels/select/query_gram_op.h"
#include "policies/kv/selector/code_scores_op.h"
#include "policies/kv/selector/low_bit_copy_op.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// Recordings have no guessed tokens: the guess is the last step's query, or the step's own (a right guess).
class SpeCache final : public Budgeted<QuerySelector<TierTraffic>> {
 public:
  explicit SpeCache(Params& p)
      : top_(p.optional<std::int32_t>("top_tokens", 64, 1, 1 << 24, "tokens brought in full precision per KV head and step")),
        residual_(p.optional<std::int32_t>("residual_tokens", 128, 1, 1 << 16, "newest tokens, in full precision on the GPU")),
        code_{p.optional<std::int32_t>("bits", 2, 1, 8, "of a code in the copy"),
              p.optional<std::int32_t>("group_tokens", 32, 1, 1024,
                                       "tokens of a channel of K, or channels of a token of V, that share a scale")},
        looks_ahead_(p.choice("guess", {{"previous", true}, {"right", false}}, true, "query that chooses; 'right' is an upper bound")) {}

  void update(LayerStep& step) override {
    const std::int32_t* from = progress_.advance(step);
    covered_ = per_row(step, [&](std::int32_t r) { return covered(step.kv.len[r], tokens_of(budget_, step, r)); });
    const std::int32_t* coded = per_row(step, [&](std::int32_t r) { return covered(from[r], tokens_of(budget_, step, r)); });
    copy_ = rows_like(step);
    step.ops(LowBitCopy{.kv = step.kv, .code = code_, .coded = coded, .covered = covered_, .out = copy_});
    if (!all_decode(step.seqs)) last_.keep(step);
  }

  Selection select(LayerStep& step) override {
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return covered_[r]; });
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) { return brought(step.kv.len[r], tokens_of(budget_, step, r)); });
    selection_ = {};
    if (keeps_all(step, first, keep)) {
      last_.keep(step);
      return selection_;
    }
    const UnitLists lists = best_units(step, step.kv.first, judge(step), keep);
    last_.keep(step);
    selection_ = expand(step, {.lists = lists, .tail = covered_});
    traffic_.track(step, lists, lists_of(selection_), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    return selection_;
  }

  // Fetched during the step before (abstract).
  [[nodiscard]] FetchBeside fetches_beside() const override { return FetchBeside::kLayerBefore; }

  [[nodiscard]] bool adds_segments() const override { return true; }
  void add_segments(LayerStep& step, std::vector<Segment>& segments) override {
    if (selection_.index_first == nullptr) return;
    const std::int32_t n = step.kv.num_rows;
    CopyUnits others{.num_rows = n, .lists = lists_of(selection_), .kind = CopyUnits::Kind::kOthers};
    others.first =
        prefix_sums(step, [&](std::int32_t r) { return step.kv.len[r] - (selection_.index_first[r + 1] - selection_.index_first[r]); });
    others.out = step.ops.ints(others.first[n]);
    step.ops(others);
    Segment segment{.kv = copy_, .index_first = others.first, .index = others.out};
    // Codes are read in whole groups.
    segment.read_bytes = sum_rows(step.kv, [&](std::int32_t r) { return code_.bytes(covered_[r], step.kv.head_dim); });
    segments.push_back(segment);
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    std::int64_t on_gpu = 0, codes = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int32_t budget = budget_.of(kv.len[r]), copied = covered(kv.len[r], budget);
      on_gpu += kv.len[r] - copied + brought(kv.len[r], budget);
      codes += code_.bytes(copied, model.head_dim);
    }
    return keep_on_gpu(held, on_gpu, kv.total()).with_gpu(codes);
  }

 private:
  [[nodiscard]] std::int32_t covered(std::int32_t len, std::int32_t budget) const {
    const std::int32_t newest = budget > 0 ? std::clamp(budget / 2, 1, residual_) : residual_;
    return std::max(0, len - newest) / code_.group * code_.group;
  }

  // Less the newest tokens, not yet a whole group.
  [[nodiscard]] std::int32_t brought(std::int32_t len, std::int32_t budget) const {
    const std::int32_t copied = covered(len, budget);
    return std::min(copied, budget > 0 ? std::max(1, budget - (len - copied)) : top_);
  }

  // One page each.
  static KvRows rows_like(LayerStep& step) {
    KvRows rows = step.kv;
    const std::int32_t n = rows.num_rows;
    rows.page_tokens = n == 0 ? 1 : std::max(1, *std::max_element(rows.len, rows.len + n));
    rows.page_begin = per_row(step, [](std::int32_t r) { return r; });
    rows.page = rows.page_begin;
    rows.pool_tokens = static_cast<std::int64_t>(n) * rows.page_tokens;
    rows.k = step.ops.floats(rows.pool_tokens * rows.head_dim);
    rows.v = step.ops.floats(rows.pool_tokens * rows.head_dim);
    rows.position = step.ops.ints(rows.pool_tokens);
    rows.words = nullptr;
    rows.num_words = 0;
    return rows;
  }

  // Full-precision tokens are masked.
  float* judge(LayerStep& step) {
    std::vector<Queries> guess(step.in.step.begin(), step.in.step.end());
    if (looks_ahead_) {
      const auto before = last_.before(step);
      guess.assign(before.begin(), before.end());
    }
    float* scores = step.ops.floats(step.kv.total());
    step.ops.zero(scores, step.kv.total());
    const AttentionStats stats{.kv = copy_, .queries = guess.data(), .group = AttentionStats::Group::kSum, .sum = scores};
    step.ops(LowBitAttention{.stats = stats, .code = code_, .covered = covered_});
    const std::int32_t* head = per_row(step, [](std::int32_t) { return 0; });
    mask_ends(step, step.kv.first, head, covered_, scores);
    return scores;
  }

  std::int32_t top_, residual_;
  LowBitCode code_;
  bool looks_ahead_;
  RowProgress progress_{*this};
  LastQueries last_{*this};
  // Valid within a step, from update() on.
  KvRows copy_;
  const std::int32_t* covered_ = nullptr;
  Selection selection_;
};

KVLAB_REGISTER(Selector, SpeCache, "spe_cache",
               "a copy in few bits on the GPU; what a guessed next token attends to is brought in full precision from the host",
               "SpeCache: Jie et al. 2025, arXiv:2503.16163, section 3");

// The query is guessed from the layer before's input; `previous` takes the last step's, for recordings without inputs.
class InfiniGen final : public Budgeted<TierSelector> {
 public:
  explicit InfiniGen(Params& p)
      : partial_frac_(p.optional<double>("partial_frac", 0.3, 0.001, 1, "share of the key channels kept on the GPU")),
        alpha_(p.optional<double>("alpha", 4, 0, 1e6, "tokens within this many nats of the best approximate logit are wanted")),
        max_frac_(p.optional<double>("max_frac", 0.2, 0, 1, "share of the row brought at most, at least one token")),
        dense_layers_(p.optional<std::int32_t>("dense_layers", 1, 0, 1024, "first layers that stay on the GPU and are read whole")),
        skew_(p.flag("skew", true, "rotate each head so that few directions hold most of the queries")),
        query_(p.choice("query", {{"previous", Query::kPrevious}, {"guessed", Query::kGuessed}, {"current", Query::kCurrent}},
                        Query::kPrevious,
                        "that chooses: the layer's own of the step before, one guessed from the input of the layer before, or the step's "
                        "own, an upper bound")) {
    if (query_ == Query::kGuessed && dense_layers_ == 0)
      p.fail_at("dense_layers", "layer 0 has no layer before it to guess its query from: write 'dense_layers: 1' or 'query: previous'");
  }

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }
  [[nodiscard]] Needs needs() const override {
    Needs needs = QuerySelector::needs();
    needs.prompt_queries = true;
    needs.guessed_query = query_ == Query::kGuessed;
    if (needs.guessed_query) needs.run_only_on_cpu("guesses queries from inputs in CPU memory");
    return needs;
  }

  [[nodiscard]] Lower lower(std::int32_t layer) const override { return layer < dense_layers_ ? Lower::kNothing : Lower::kKeysAndValues; }

  // Guessed and fetched during the layer before (abstract).
  [[nodiscard]] FetchBeside fetches_beside() const override {
    return query_ == Query::kCurrent ? FetchBeside::kNothing : FetchBeside::kLayerBefore;
  }

  void update(LayerStep& step) override {
    if (step.layer < dense_layers_) return;
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
    choose_basis(step);
    TokenNorms project{.kv = step.kv, .kind = TokenNorms::Kind::kProject, .width = width(step), .copies_channels = !skew_};
    const std::int32_t* covered = progress_.advance(step);
    project.from = per_row(step, [&](std::int32_t r) {
      const char state = has_basis_.of_sequence(step, step.kv.sequence(r));
      return state == kNew ? 0 : state == kKnown ? covered[r] : step.kv.len[r];
    });
    project.basis = basis(step);
    project.partial = partial(step);
    step.ops(project);
    for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s) {
      char& state = has_basis_.of_sequence(step, s);
      if (state == kNew) state = kKnown;
    }
    if (!all_decode(step.seqs)) keep_query(step);
  }

  Selection select(LayerStep& step) override {
    if (step.layer < dense_layers_) return {};
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return older_tokens(step, r); });
    CodeScores scores{.num_rows = n, .kind = CodeScores::Kind::kBelowTop};
    scores.kv_heads = step.kv.kv_heads, scores.group = step.kv.group, scores.head_dim = step.kv.head_dim;
    scores.kv_bytes = step.kv.kv_bytes, scores.code_bits = 8 * width(step) * step.kv.kv_bytes;
    scores.queries = queries(step).data();
    scores.vectors = per_row(step, [&](std::int32_t) { return width(step); });
    scores.vector = basis(step), scores.coefficients = partial(step);
    scores.begin = per_row(step, [](std::int32_t) { return 0; });
    scores.first = prefix_sums(step, [&](std::int32_t r) { return tail[r]; });
    scores.scores = step.ops.floats(scores.first[n]);
    step.ops(scores);
    const std::int32_t* cap = per_row(step, [&](std::int32_t r) { return cap_tokens(tail[r], tokens_of(budget_, step, r)); });
    std::int32_t* count = per_row(step, [&](std::int32_t r) { return cap[r]; });
    step.ops(CountScores{.num_rows = n,
                         .first = scores.first,
                         .scores = scores.scores,
                         .kind = CountScores::Kind::kMeanAbove,
                         .limit = static_cast<float>(-alpha_),
                         .count = count,
                         .rows_per_pool = step.kv.kv_heads,
                         .given = cap});
    settle_rows(step, "selected_tokens", count);
    const UnitLists lists = best_units(step, scores.first, scores.scores, count);
    keep_query(step);
    const Selection selection = expand(step, {.lists = lists, .tail = tail});
    traffic_.track(step, lists, lists_of(selection), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    return selection;
  }

  [[nodiscard]] TierBytes resident_in_layer(std::int32_t layer, const ModelShape& model, const KvRows& kv,
                                            const TierBytes& held) const override {
    if (layer < dense_layers_) return held;
    const auto on_gpu = sum_rows(kv, [&](std::int32_t r) { return std::min(kv.len[r], cap_tokens(kv.len[r], budget_.of(kv.len[r])) + 1); });
    const std::int64_t lines = kv.total() + static_cast<std::int64_t>(kv.num_rows) * (skew_ ? model.head_dim : 1);
    return keep_on_gpu(held, on_gpu, kv.total()).with_gpu(lines * directions(model.head_dim) * model.kv_bytes);
  }

 private:
  enum State : char { kNone, kNew, kKnown };
  enum class Query : std::uint8_t { kPrevious, kGuessed, kCurrent };

  std::span<const Queries> queries(LayerStep& step) {
    if (query_ == Query::kCurrent) return step.in.step;
    return query_ == Query::kPrevious ? last_.before(step) : guessed_from_layer_before(step);
  }
  // Of decoding sequences (Needs::guessed_query). Not for layer 0.
  std::span<const Queries> guessed_from_layer_before(LayerStep& step) {
    const ModelShape& model = step.model;
    const std::size_t n = step.seqs.size(), half = static_cast<std::size_t>(model.head_dim / 2);
    std::vector<float> cos(n * half), sin(n * half);
    const bool turns = model.rope.base != 0 && step.ops.computes();
    if (turns) {
      const Rotary rotary(model.rope, model.head_dim);
      for (std::size_t s = 0; s < n; ++s) {
        const std::int32_t position = step.seqs[s].seen_tokens;
        rotary.fill({&position, 1}, cos.data() + s * half, sin.data() + s * half);
      }
    }
    GuessQueries guess{static_cast<std::int32_t>(n), model.q_heads, model.head_dim, model.hidden_dim,
                       step.in.hidden_before.data(), step.in.w_q};
    guess.cos = turns ? cos.data() : nullptr, guess.sin = turns ? sin.data() : nullptr;
    guess.out = step.ops.floats(static_cast<std::int64_t>(n) * model.q_heads * model.head_dim);
    step.ops(guess);
    guessed_ = queries_over(step, guess.out);
    for (std::size_t s = 0; s < n; ++s) guessed_[s].first_position = step.seqs[s].seen_tokens;
    return guessed_;
  }
  void keep_query(LayerStep& step) {
    if (query_ != Query::kGuessed) last_.keep(step);
  }

  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    const std::int32_t len = step.kv.len[r];
    return cap_tokens(len, tokens_of(budget_, step, r)) + 1 >= len ? 0 : len;
  }
  [[nodiscard]] std::int32_t cap_tokens(std::int32_t older, std::int32_t budget) const {
    const auto share = budget > 0 ? budget - 1 : static_cast<std::int32_t>(max_frac_ * older);
    return std::min(older, std::max(1, share));
  }
  [[nodiscard]] std::int32_t directions(std::int32_t head_dim) const {
    return std::clamp(static_cast<std::int32_t>(partial_frac_ * head_dim), 1, head_dim);
  }
  [[nodiscard]] std::int32_t width(const LayerStep& step) const { return directions(step.kv.head_dim); }
  float* const* basis(const LayerStep& step) {
    return basis_.rows(step, [&](std::int32_t) { return static_cast<std::int64_t>(width(step)) * step.kv.head_dim; });
  }
  float* const* partial(const LayerStep& step) {
    return partial_.rows(step, [&](std::int32_t r) { return static_cast<std::int64_t>(width(step)) * step.kv.len[r]; });
  }

  // At the prompt's end; without a prompt, at the first step.
  void choose_basis(LayerStep& step) {
    const std::int32_t sequences = step.kv.num_sequences();
    std::int32_t* fresh = step.ops.host_ints(sequences);
    std::int32_t* chosen = step.ops.host_ints(sequences);
    bool any = false;
    for (std::int32_t s = 0; s < sequences; ++s) {
      const SeqStep& seq = step.seqs[static_cast<std::size_t>(s)];
      char& state = has_basis_.of_sequence(step, s);
      if (seq.seen_tokens == 0) state = kNone;
      const bool late = seq.decoding() && state == kNone;
      fresh[s] = seq.seen_tokens == 0 || late ? 1 : state == kNone ? 0 : 2;
      chosen[s] = late || seq.completes_prompt() ? 1 : 0;
      if (chosen[s] == 1) state = kNew;
      any |= fresh[s] != 2;
    }
    if (!any) return;
    const std::int64_t d = step.kv.head_dim;
    float* const* abs_sum = abs_sum_.rows(step, [&](std::int32_t) { return d; });
    float* const* gram = gram_.rows(step, [&](std::int32_t) { return skew_ ? d * d : 0; });
    step.ops(
        QueryGram{step.kv.num_rows, step.kv.kv_heads, step.kv.group, step.kv.head_dim, step.in.step.data(), fresh, skew_, abs_sum, gram});
    step.ops(ColumnBasis{step.kv.num_rows, step.kv.kv_heads, step.kv.head_dim, width(step), chosen, skew_, abs_sum, gram, basis(step)});
  }

  double partial_frac_, alpha_, max_frac_;
  std::int32_t dense_layers_;
  bool skew_;
  Query query_;
  RowMemory<float> abs_sum_{*this}, gram_{*this}, basis_{*this}, partial_{*this};
  RowProgress progress_{*this};
  PerRow<char> has_basis_{*this};
  LastQueries last_{*this};
  std::vector<Queries> guessed_;  // valid within a step
};

KVLAB_REGISTER(Selector, InfiniGen, "infinigen",
               "tokens that partial keys on the GPU promise to matter, brought from the host before the step",
               "InfiniGen: Lee et al. 2024, arXiv:2406.19707, sections 4.2 and 4.3");

}  // namespace

}  // namespace kvlab
