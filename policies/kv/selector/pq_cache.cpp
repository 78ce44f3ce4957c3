#include "policies/kv/selector/budget_share.h"
#include "policies/kv/selector/code_scores_op.h"
#include "policies/kv/selector/product_codes_op.h"
#include "policies/kv/selector/tiers.h"

namespace kvlab {

namespace {

// The GPU keeps first, newest and the last step's tokens; the paper has a cache of blocks.
class PqCache final : public Budgeted<TierSelector> {
 public:
  explicit PqCache(Params& p)
      : sinks_(p.optional<std::int32_t>("sink_tokens", 32, 0, 1 << 20, "first tokens, on the GPU")),
        read_frac_(p.optional<double>("read_frac", 0.1, 1e-5, 1, "share of the prompt read beside them: half newest tokens, half found")),
        shape_{p.optional<std::int32_t>("parts", 2, 1, 64, "equal parts of a key's channels"),
               p.optional<std::int32_t>("centers", 64, 2, 4096,
                                        "of a part; a sequence with fewer tokens beside the first ones is read whole")},
        rounds_(p.optional<std::int32_t>("rounds", 10, 1, 1000, "rounds of k-means")) {}

  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (model.head_dim % shape_.parts == 0) return "";
    return "selector 'pq_cache' cuts the " + std::to_string(model.head_dim) + " channels of a head into " + std::to_string(shape_.parts) +
           " equal parts: give 'parts' that divide them";
  }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver), key.add(seq.end()); }
  void whole_key(const SeqStep& seq, StepKey& key) const override {
    const AttendedParts size = sizes(budget_.of(seq.prompt_tokens), seq.prompt_tokens);
    const std::int32_t others = seq.end() - size.sinks - size.recent;
    const bool is_steady = others > size.top + 1 && seq.end() - 2 - size.sinks >= shape_.centers;
    key.add(seq.prompt_tokens, StepKey::kForEver);
    key.add(is_steady ? -1 : seq.end(), is_steady ? StepKey::kForEver : 1);
  }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }

  [[nodiscard]] Lower lower(std::int32_t) const override { return Lower::kKeysAndValues; }

  void update(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* covered = progress_.advance(step);
    train(step);
    ProductCodes assign{.kv = step.kv, .shape = shape_};
    assign.from =
        per_row(step, [&](std::int32_t r) { return std::max(sizes(step, r).sinks, covered[r] == 0 ? 0 : rows_.at(step, r).coded); });
    assign.to = per_row(
        step, [&](std::int32_t r) { return rows_.at(step, r).centers == 0 ? 0 : std::max(0, step.kv.len[r] - sizes(step, r).recent); });
    for (std::int32_t r = 0; r < n; ++r) rows_.at(step, r).coded = assign.to[r];
    assign.centers = counts(step);
    assign.center = centers(step), assign.code = code(step);
    step.ops(assign);
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return rows_.at(step, r).coded; });
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return std::min(sizes(step, r).sinks, tail[r]); });
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return tail[r] - head[r]; });
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) { return std::min(sizes(step, r).top, tail[r] - head[r]); });
    if (traffic_.reads_all(step, keeps_all(step, first, keep))) return {};
    CodeScores scores{.kind = CodeScores::Kind::kAttention};
    scores.num_rows = n;
    scores.kv_heads = step.kv.kv_heads, scores.group = step.kv.group, scores.head_dim = step.kv.head_dim,
    scores.kv_bytes = step.kv.kv_bytes;
    scores.parts = shape_.parts, scores.code_bits = 8 * shape_.code_bytes();
    scores.queries = step.in.step.data();
    scores.vectors = counts(step);
    scores.vector = centers(step), scores.code = code(step);
    scores.begin = head, scores.first = first;
    scores.scores = step.ops.floats(first[n]);
    step.ops(scores);
    const UnitLists found = best_units(step, first, scores.scores, keep);
    const Selection selection = expand(step, {.lists = found, .base = head, .head = head, .tail = tail});
    traffic_.track(step, in_row(step, selection, head, keep), lists_of(selection), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    return selection;
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    std::int64_t on_gpu = 0, codes = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const AttendedParts size = sizes(budget_.of(kv.len[r]), kv.len[r]);
      const std::int32_t others = std::max(0, kv.len[r] - size.sinks - size.recent);
      on_gpu += std::min(kv.len[r], size.sinks + size.recent + size.top);
      codes += std::int64_t{others} * shape_.code_bytes();
      if (kv.len[r] - size.sinks >= shape_.centers) codes += std::int64_t{shape_.centers} * model.head_dim * model.kv_bytes;
    }
    return keep_on_gpu(held, on_gpu, kv.total()).with_gpu(codes);
  }

 private:
  struct Row {
    std::int32_t centers = 0, coded = 0;  // per part; end of the coded tokens
  };
  [[nodiscard]] AttendedParts sizes(std::int32_t budget, std::int32_t prompt) const {
    if (!is_given(budget_)) {
      const std::int32_t half = std::max(1, static_cast<std::int32_t>(read_frac_ * (prompt - sinks_) * 0.5));
      return {sinks_, half, half};
    }
    const std::int32_t sinks = std::min(sinks_, budget / 4), recent = std::max(1, (budget - sinks) / 2);
    return {sinks, recent, std::max(1, budget - sinks - recent)};
  }
  [[nodiscard]] AttendedParts sizes(const LayerStep& step, std::int32_t r) const {
    return sizes(tokens_of(budget_, step, r), seq_of(step, r).prompt_tokens);
  }
  std::int32_t head_of(const LayerStep& step, std::int32_t r) override { return sizes(step, r).sinks; }
  // Tokens without a code stay; 0 if the whole row is read.
  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    const std::int32_t coded = rows_.at(step, r).coded;
    return coded - std::min(sizes(step, r).sinks, coded) <= sizes(step, r).top ? 0 : coded;
  }
  const std::int32_t* counts(const LayerStep& step) {
    return per_row(step, [&](std::int32_t r) { return rows_.at(step, r).centers; });
  }
  float* const* centers(const LayerStep& step) {
    return centers_.rows(step, [&](std::int32_t r) { return std::int64_t{rows_.at(step, r).centers} * step.kv.head_dim; });
  }
  std::int32_t* const* code(const LayerStep& step) {
    return code_.rows(step, [&](std::int32_t r) { return std::int64_t{step.kv.len[r]} * shape_.parts; });
  }

  // Once: at the prompt's end, or later, with a token per center after the sinks.
  void train(LayerStep& step) {
    const std::int32_t n = step.kv.num_rows;
    std::int32_t* end = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      const SeqStep& seq = seq_of(step, r);
      Row& row = rows_.at(step, r);
      if (seq.seen_tokens == 0) row = {};
      const bool can_train = step.kv.len[r] - sizes(step, r).sinks >= shape_.centers;
      const bool trains = can_train && (seq.completes_prompt() || (seq.decoding() && row.centers == 0));
      end[r] = trains ? step.kv.len[r] : 0;
      if (trains) row = {shape_.centers, 0};
    }
    if (all_whole(step, end)) return;
    step.ops(ProductCodes{.kv = step.kv,
                          .shape = shape_,
                          .kind = ProductCodes::Kind::kTrain,
                          .from = per_row(step, [&](std::int32_t r) { return sizes(step, r).sinks; }),
                          .to = end,
                          .centers = counts(step),
                          .center = centers(step),
                          .rounds = rounds_});
  }

  std::int32_t sinks_;
  double read_frac_;
  ProductShape shape_;
  std::int32_t rounds_;
  RowMemory<float> centers_{*this};
  RowMemory<std::int32_t> code_{*this};
  PerRow<Row> rows_{*this};
  RowProgress progress_{*this};
};

KVLAB_REGISTER(Selector, PqCache, "pq_cache", "tokens by attention looked up in product codes of their keys; K and V in CPU memory",
               "PQCache: Zhang et al. 2024, arXiv:2407.12820");

}  // namespace

}  // namespace kvlab
