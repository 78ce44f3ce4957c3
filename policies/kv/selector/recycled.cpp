#include "kernels/select/query_drift_op.h"
#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

// Generated tokens replace the least recycled ones.
class Recycled final : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  explicit Recycled(Params& p)
      : Budgeted({p.optional<std::int32_t>("budget_tokens", 2048, 1, 1 << 24, "tokens of a recycled step per KV head, new ones included")}),
        every_steps_(
            p.optional<std::int32_t>("every_steps", 10, 1, 1 << 20, "steps from one full step, or one look at the query, to the next")),
        dynamic_(p.choice("schedule", {{"dynamic", true}, {"fixed", false}}, true,
                          "full steps where the query has turned, or always when they are due")),
        min_cosine_(p.optional<double>("min_cosine", 0.8, -1, 1, "dynamic: a full step below this cosine to the last full step's query")) {}

  void step_key(const SeqStep& seq, StepKey& key) const override {
    const std::int32_t since = std::max(0, seq.end() - seq.prompt_tokens - 1) % every_steps_;
    key.add(since > 0 ? 1 : 0, since > 0 ? every_steps_ - since : 1);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* recycles = schedule(step);
    const auto recycled = [&](std::int32_t r) { return recycles[step.kv.sequence(r)] == 1; };
    if (std::any_of(recycles, recycles + step.kv.num_sequences(), [](std::int32_t x) { return x == 0; })) rank_all(step, recycles);
    if (std::none_of(recycles, recycles + step.kv.num_sequences(), [](std::int32_t x) { return x == 1; })) return {};
    SortUnits best{.num_rows = n,
                   .lists = {.rows = ranked_.rows(step, [](std::int32_t) { return 0; })},
                   .kind = SortUnits::Kind::kByUnit,
                   .first = prefix_sums(step, [&](std::int32_t r) {
                     const Choice& c = choices_.at(step, r);
                     return recycled(r) ? std::clamp(tokens_of(budget_, step, r) - (step.kv.len[r] - c.mark.len), 0, c.count) : 0;
                   })};
    best.unit = step.ops.ints(best.first[n]);
    step.ops(best);
    const UnitLists lists{.first = best.first, .unit = best.unit};
    traffic_.track(step, lists);
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return recycled(r) ? choices_.at(step, r).mark.len : 0; });
    return expand(step, {.lists = lists, .tail = tail});
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    const auto lists = sum_rows(kv, [&](std::int32_t r) { return 4LL * std::min(kv.len[r], budget_.of(kv.len[r])); });
    const std::int64_t references = dynamic_ ? 4LL * kv.num_sequences() * model.q_heads * model.head_dim : 0;
    return held.with_gpu(lists + references);
  }

 private:
  struct Choice {
    RowMark mark;  // the full step
    std::int32_t count = 0;
  };

  std::int32_t rule(const LayerStep& step, std::int32_t s) {
    const SeqStep& seq = step.seqs[static_cast<std::size_t>(s)];
    for (std::int32_t r = s * step.kv.kv_heads; r < (s + 1) * step.kv.kv_heads; ++r)
      if (!choices_.at(step, r).mark.grew_to(seq, step.kv.len[r])) return QueryDrift::kAlways;
    // From the prompt's end, so that work depends on lengths only.
    if (std::max(0, seq.end() - seq.prompt_tokens - 1) % every_steps_ > 0) return QueryDrift::kNever;
    return dynamic_ ? QueryDrift::kIfTurned : QueryDrift::kAlways;
  }

  // 1 for sequences that recycle in this step.
  const std::int32_t* schedule(LayerStep& step) {
    const std::int32_t sequences = step.kv.num_sequences();
    QueryDrift drift{.num_sequences = sequences,
                     .width = step.model.q_heads * step.model.head_dim,
                     .queries = step.in.step.data(),
                     .rule = per_row(step.ops, sequences, [&](std::int32_t s) { return rule(step, s); }),
                     .min_cosine = static_cast<float>(min_cosine_)};
    drift.reference = references_.sequences(step, [&](std::int32_t) { return drift.width; });
    drift.refresh = per_row(step.ops, sequences, [&](std::int32_t s) { return drift.rule[s] == QueryDrift::kNever ? 0 : 1; });
    if (dynamic_) {
      step.ops(drift);
      step.ops.settle("full_steps", step.layer, {drift.refresh, static_cast<std::size_t>(sequences)});
    }
    return per_row(step.ops, sequences, [&](std::int32_t s) {
      return drift.rule[s] == QueryDrift::kNever || (drift.rule[s] == QueryDrift::kIfTurned && drift.refresh[s] == 0) ? 1 : 0;
    });
  }

  void rank_all(LayerStep& step, const std::int32_t* recycles) {
    const std::int32_t n = step.kv.num_rows;
    const TokenProbabilities all = token_probabilities(step, AttentionStats::Group::kMean, recycles);
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) {
      return static_cast<std::int32_t>(std::min<std::int64_t>(tokens_of(budget_, step, r), all.first[r + 1] - all.first[r]));
    });
    step.ops(SortUnits{.num_rows = n,
                       .lists = best_units(step, all.first, all.scores, keep),
                       .score_first = all.first,
                       .scores = all.scores,
                       .to = ranked_.rows(step, [&](std::int32_t r) { return keep[r]; })});
    for (std::int32_t r = 0; r < n; ++r)
      if (recycles[step.kv.sequence(r)] == 0) choices_.at(step, r) = {{step.kv.len[r], seq_of(step, r).end()}, keep[r]};
  }

  std::int32_t every_steps_;
  bool dynamic_;
  double min_cosine_;
  PerRow<Choice> choices_{*this};
  RowMemory<std::int32_t> ranked_{*this};
  RowMemory<float> references_{*this};
};

KVLAB_REGISTER(Selector, Recycled, "recycled", "full attention now and then, its largest tokens in between",
               "Recycled Attention: Xu et al. 2024, arXiv:2411.05787");

}  // namespace

}  // namespace kvlab
