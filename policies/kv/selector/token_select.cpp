#include "base/error.h"
#include "kernels/score/head_scores_op.h"
#include "kernels/select/query_drift_op.h"
#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

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
    check_lengths(step);
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

  // So that an index means the same token.
  static void check_lengths(const LayerStep& step) {
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      if (step.kv.len[r] != step.kv.len[r / step.kv.kv_heads * step.kv.kv_heads])
        throw InputError(
            "selector 'token_select' elects the same tokens for all heads of a layer, but heads hold different numbers of tokens");
  }

  const std::int32_t* standing(LayerStep& step, const std::int32_t* tail) {
    const std::int32_t sequences = step.kv.num_sequences(), heads = step.kv.kv_heads;
    QueryDrift drift{.num_sequences = sequences,
                     .width = step.model.q_heads * step.model.head_dim,
                     .queries = step.in.step.data(),
                     .rule = per_row(step.ops, sequences,
                                     [&](std::int32_t s) -> std::int32_t {
                                       RowMark& mark = marks_.of_sequence(step, s);
                                       const SeqStep& seq = step.seqs[static_cast<std::size_t>(s)];
                                       const bool grew = mark.grew_to(seq, step.kv.len[s * heads]);
                                       mark = tail[s * heads] == 0 ? RowMark{} : RowMark{step.kv.len[s * heads], seq.end()};
                                       if (tail[s * heads] == 0) return QueryDrift::kNever;
                                       return grew ? QueryDrift::kIfTurned : QueryDrift::kAlways;
                                     }),
                     .min_cosine = static_cast<float>(min_cosine_)};
    drift.reference = references_.sequences(step, [&](std::int32_t) { return drift.width; });
    std::int32_t* refresh = per_row(step.ops, sequences, [&](std::int32_t s) { return drift.rule[s] == QueryDrift::kNever ? 0 : 1; });
    drift.refresh = refresh;
    step.ops(drift);
    step.ops.settle("refreshed", step.layer, {refresh, static_cast<std::size_t>(sequences)});
    return per_row(step.ops, sequences, [&](std::int32_t s) {
      return drift.rule[s] == QueryDrift::kNever || (drift.rule[s] == QueryDrift::kIfTurned && refresh[s] == 0) ? 1 : 0;
    });
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

}  // namespace

}  // namespace kvlab
