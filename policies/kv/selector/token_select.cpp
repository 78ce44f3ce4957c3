#include "base/error.h"
#include "kernels/score/head_scores_op.h"
#include "kernels/select/query_drift_op.h"
#include "policies/kv/selector/estimate_keys_op.h"
#include "policies/kv/selector/selection.h"

namespace kvlab {

namespace {

// So that an index means the same token.
void check_lengths(const KvRows& kv, const std::string& chooses) {
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    if (kv.len[r] != kv.len[r / kv.kv_heads * kv.kv_heads])
      throw InputError("selector " + chooses + " the same tokens for all heads of a layer, but heads hold different numbers of tokens");
}

// 1 for sequences that need no new choice; the others' queries become the reference. `looks` false: no query is compared.
const std::int32_t* choices_that_stand(LayerStep& step, const std::int32_t* rule, double min_cosine, RowMemory<float>& references,
                                       const char* purpose, bool looks = true) {
  const std::int32_t sequences = step.kv.num_sequences();
  QueryDrift drift{.num_sequences = sequences,
                   .width = step.model.q_heads * step.model.head_dim,
                   .queries = step.in.step.data(),
                   .rule = rule,
                   .min_cosine = static_cast<float>(min_cosine)};
  drift.reference = references.sequences(step, [&](std::int32_t) { return drift.width; });
  drift.refresh = per_row(step.ops, sequences, [&](std::int32_t s) { return rule[s] == QueryDrift::kNever ? 0 : 1; });
  if (looks) {
    step.ops(drift);
    step.ops.settle(purpose, step.layer, {drift.refresh, static_cast<std::size_t>(sequences)});
  }
  return per_row(step.ops, sequences, [&](std::int32_t s) {
    return rule[s] == QueryDrift::kNever || (rule[s] == QueryDrift::kIfTurned && drift.refresh[s] == 0) ? 1 : 0;
  });
}

class TokenSelect final : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  explicit TokenSelect(Params& p)
      : sinks_(p.optional<std::int32_t>("sink_tokens", 128, 0, 1 << 20, "first tokens attended to")),
        recent_(p.optional<std::int32_t>("recent_tokens", 512, 1, 1 << 20, "newest tokens attended to")),
        top_(p.optional<std::int32_t>("top_tokens", 2048, 1, 1 << 24, "elected tokens between them")),
        min_cosine_(p.optional<double>("min_cosine", 0.9, -1, 2, "a choice serves while query and its query are this close; 2: never")) {}

  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kLeft; }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) {
      const AttendedParts size = sizes(step, r);
      const std::int32_t older = std::min(step.kv.len[r] - size.recent, older_tokens(step, r));
      return older <= size.sinks + size.top ? 0 : older;
    });
    check_lengths(step.kv, "'token_select' elects");
    if (all_whole(step, tail)) return {};
    elect(step, tail);
    UnitLists lists;
    lists.count = per_row(step, [&](std::int32_t r) { return tail[r] == 0 ? 0 : sizes(step, r).top; });
    std::int32_t* const* own = elected_.sequences(step, [](std::int32_t) { return 0; });
    row_lists_.resize(static_cast<std::size_t>(n));
    for (std::int32_t r = 0; r < n; ++r) row_lists_[static_cast<std::size_t>(r)] = own[step.kv.sequence(r)];
    lists.rows = row_lists_.data();
    traffic_.track(step, lists);
    // Elected tokens are counted from the sinks' end.
    const std::int32_t* base = per_row(step, [&](std::int32_t r) { return sizes(step, r).sinks; });
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return tail[r] == 0 ? 0 : base[r]; });
    return expand(step, {.lists = lists, .base = base, .head = head, .tail = tail});
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    TierBytes bytes = held;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s)
      bytes.gpu += 4LL * model.q_heads * model.head_dim + 4LL * sizes(budget_.of(kv.len[s * kv.kv_heads])).top;
    return bytes;
  }

 private:
  [[nodiscard]] AttendedParts sizes(std::int32_t tokens) const { return parts_of({sinks_, recent_, top_}, budget_, tokens); }
  [[nodiscard]] AttendedParts sizes(const LayerStep& step, std::int32_t r) const { return sizes(tokens_of(budget_, step, r)); }

  const std::int32_t* standing(LayerStep& step, const std::int32_t* tail) {
    const std::int32_t heads = step.kv.kv_heads;
    const std::int32_t* rule = per_row(step.ops, step.kv.num_sequences(), [&](std::int32_t s) -> std::int32_t {
      RowMark& mark = marks_.of_sequence(step, s);
      const SeqStep& seq = step.seqs[static_cast<std::size_t>(s)];
      const bool grew = mark.grew_to(seq, step.kv.len[s * heads]);
      mark = tail[s * heads] == 0 ? RowMark{} : RowMark{step.kv.len[s * heads], seq.end()};
      if (tail[s * heads] == 0) return QueryDrift::kNever;
      return grew ? QueryDrift::kIfTurned : QueryDrift::kAlways;
    });
    return choices_that_stand(step, rule, min_cosine_, references_, "refreshed");
  }
  void elect(LayerStep& step, const std::int32_t* tail) {
    const std::int32_t sequences = step.kv.num_sequences(), heads = step.kv.kv_heads;
    const std::int32_t* skip = standing(step, tail);
    if (std::all_of(skip, skip + sequences, [](std::int32_t s) { return s == 1; })) return;
    HeadScores votes{.kv = step.kv, .queries = step.in.step.data(), .begin = per_row(step.ops, sequences, [&](std::int32_t s) {
                                                                      return sizes(step, s * heads).sinks;
                                                                    })};
    votes.first = prefix_sums(step.ops, sequences, [&](std::int32_t s) { return skip[s] == 1 ? 0 : tail[s * heads] - votes.begin[s]; });
    votes.out = step.ops.floats(votes.first[sequences]);
    step.ops(votes);
    const std::int32_t* keep = per_row(step.ops, sequences, [&](std::int32_t s) { return skip[s] == 1 ? 0 : sizes(step, s * heads).top; });
    step.ops(CopyUnits{.num_rows = sequences,
                       .lists = best_units(step.ops, sequences, 1, votes.first, votes.out, keep),
                       .to = elected_.sequences(step, [&](std::int32_t s) { return sizes(step, s * heads).top; })});
  }

  std::int32_t sinks_, recent_, top_;
  double min_cosine_;
  PerRow<RowMark> marks_{*this};            // of the last step, per sequence
  RowMemory<std::int32_t> elected_{*this};  // per sequence
  RowMemory<float> references_{*this};      // per sequence
  std::vector<std::int32_t*> row_lists_;
};

KVLAB_REGISTER(Selector, TokenSelect, "token_select",
               "tokens elected by the attention of all heads of a layer, chosen anew when the query turns",
               "TokenSelect: Wu et al. 2024, arXiv:2411.02886");

// Sum over heads of ReLU(q . k). The layer's own heads with weight 1 and keys of all KV heads replace the trained index (a key of 128
// channels per token, 64 weighted heads).
class LightningIndexer final : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  explicit LightningIndexer(Params& p)
      : Budgeted({p.optional<std::int32_t>("top_tokens", 2048, 1, 1 << 24, "tokens attended to per query, the same for all heads")}) {}

  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kLeft; }

  void update(LayerStep& step) override {
    const EstimateKeys keys{.kv = step.kv, .rotated = true, .from = progress_.advance(step), .estimate = estimates(step)};
    if (!std::equal(keys.from, keys.from + step.kv.num_rows, step.kv.len)) step.ops(keys);
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows, sequences = step.kv.num_sequences(), heads = step.kv.kv_heads;
    check_lengths(step.kv, "'lightning_indexer' chooses");
    const auto is_sparse = [&](std::int32_t s) { return step.kv.len[s * heads] > tokens_of(budget_, step, s * heads); };
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return is_sparse(r / heads) ? step.kv.len[r] : 0; });
    if (all_whole(step, tail)) return {};
    HeadScores scores{.kv = step.kv, .queries = step.in.step.data(), .kind = HeadScores::Kind::kRectified, .estimate = estimates(step)};
    scores.first = prefix_sums(step.ops, sequences, [&](std::int32_t s) { return is_sparse(s) ? step.kv.len[s * heads] : 0; });
    scores.out = step.ops.floats(scores.first[sequences]);
    step.ops(scores);
    const std::int32_t* keep =
        per_row(step.ops, sequences, [&](std::int32_t s) { return is_sparse(s) ? tokens_of(budget_, step, s * heads) : 0; });
    const UnitLists chosen = best_units(step.ops, sequences, 1, scores.first, scores.out, keep);
    lists_.assign(static_cast<std::size_t>(n), nullptr);
    for (std::int32_t r = 0; r < n && step.ops.computes(); ++r) lists_[static_cast<std::size_t>(r)] = chosen.row(r / heads);
    const UnitLists lists{.rows = lists_.data(), .count = per_row(step, [&](std::int32_t r) { return keep[r / heads]; })};
    traffic_.track(step, lists);
    return expand(step, {.lists = lists, .tail = tail});
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    return held.with_gpu(kv.total() * estimate_bytes(model.head_dim, 8));
  }

 private:
  float* const* estimates(const LayerStep& step) {
    return estimates_.rows(step, [&](std::int32_t r) { return std::int64_t{step.kv.len[r]} * step.kv.head_dim; });
  }

  RowProgress progress_{*this};
  RowMemory<float> estimates_{*this};
  std::vector<const std::int32_t*> lists_;
};

KVLAB_REGISTER(Selector, LightningIndexer, "lightning_indexer",
               "the tokens of the largest rectified products with an 8-bit index, the same for all heads",
               "DeepSeek sparse attention: DeepSeek-V3.2-Exp, 2025");

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
    const std::int32_t* rules = per_row(step.ops, step.kv.num_sequences(), [&](std::int32_t s) { return rule(step, s); });
    return choices_that_stand(step, rules, min_cosine_, references_, "full_steps", dynamic_);
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
