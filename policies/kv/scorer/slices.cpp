#include <algorithm>

#include "kernels/score/mark_top_op.h"
#include "kernels/select/top_k/top_k.h"
#include "policies/kv/scorer/row_parts.h"
#include "policies/kv/scorer/scorer_wrapper.h"
#include "policies/kv/scorer/token_lists_op.h"

namespace kvlab {

namespace {

// FINCH's chunks as in kvpress, by whole-prompt scores; or ChunkPress, which scores slices as prompts. At least one token per slice stays.
class Slices final : public ScorerWrapper {
 public:
  explicit Slices(Params& p)
      : Slices(p, p.choice("scored", {{"in_prompt", false}, {"alone", true}}, false,
                           "by scores of the whole prompt; or each slice as a prompt of its own, as in kvpress's ChunkPress, for scorers "
                           "that read keys, values and queries before RoPE alone")) {}

  [[nodiscard]] Protected protects() const override { return alone_ ? Protected{} : inner().protects(); }
  // Separate slices have equal tokens in all heads.
  [[nodiscard]] EqualHeads equal_heads() const override {
    return alone_ ? std::max(EqualHeads::kFound, ScorerWrapper::equal_heads()) : ScorerWrapper::equal_heads();
  }
  void set_budget(const Budget& budget) override {
    ScorerWrapper::set_budget(budget);
    frac_ = budget.tokens > 0 ? 0 : budget.frac;
  }

  void score(LayerStep& step, float* scores) override {
    if (!alone_) return inner().score(step, scores);
    std::vector<RowPart> slices;
    for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s)
      for (std::int32_t at = 0, n = step.kv.len[s * step.kv.kv_heads]; at < n; at += slice_)
        slices.push_back({s, at, std::min(slice_, n - at)});
    const RowParts parts(step, slices, RowParts::Positions::kOwn);
    LayerStep part = parts.step();
    float* of_parts = step.ops.floats(part.kv.total());
    inner().score(part, of_parts);
    const Protected stay = inner().protects();
    if (stay.sinks > 0 || stay.recent > 0) protect_ends(part, stay, of_parts, true);
    parts.put_back(of_parts, scores);
  }

  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    const KvRows& kv = step.kv;
    inner().refine(step, keep, scores);
    std::vector<std::int64_t> begin;
    std::vector<std::int32_t> counts;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) keep[r] = cut_row(kv, r, keep[r], begin, counts);
    begin.push_back(kv.total());
    float* chosen = step.ops.floats(kv.total());
    clear_scores(step, chosen);
    MarkTop best{static_cast<std::int32_t>(counts.size()), begin.data(), scores, counts.data(), chosen};
    best.peer_ties = peer_ties_;
    step.ops(best);
    step.ops(ScoreMap{kv.num_rows, kv.first, ScoreMap::Kind::kPlus, chosen, 1.0F, 0.0F, false, nullptr, nullptr, scores});
  }

 private:
  Slices(Params& p, bool alone)
      : ScorerWrapper(p, "key_norm", passed_on(alone), alone ? "; or 'scored: in_prompt'" : ""),
        slice_(p.optional<std::int32_t>("slice_tokens", 1024, 1, 1 << 20, "tokens of a slice")),
        alone_(alone) {
    peer_ties_ = p.flag("peer_ties", false, "equal scores at a slice's boundary fall as in torch.topk on a CPU");
  }

  static PassedOn passed_on(bool alone) { return {.wrapper = "slices", .whole_step = !alone, .needs = RowParts::kept()}; }

  // Returns the sum of kept tokens.
  std::int32_t cut_row(const KvRows& kv, std::int32_t row, std::int32_t keep, std::vector<std::int64_t>& begin,
                       std::vector<std::int32_t>& counts) const {
    const std::int32_t n = kv.len[row];
    const double frac = frac_ > 0 ? frac_ : static_cast<double>(keep) / std::max(1, n);
    std::int32_t sum = 0;
    for (std::int32_t at = 0; at < n; at += slice_) {
      begin.push_back(kv.first[row] + at);
      counts.push_back(std::max(1, static_cast<std::int32_t>(std::min(slice_, n - at) * frac)));
      sum += counts.back();
    }
    return sum;
  }

  std::int32_t slice_;
  bool alone_;
  double frac_ = 0;  // share of the prompt
};

KVLAB_REGISTER(Scorer, Slices, "slices", "the prompt in slices, each cut to the same share by another score",
               "FINCH: Corallo and Papotti 2024, arXiv:2408.00167; kvpress's ChunkPress, version 0.5.5");

// Section 4, as in kvpress's BlockPress: cuts once, as if after each block.
class Blocks final : public ScorerWrapper {
 public:
  explicit Blocks(Params& p)
      : ScorerWrapper(p, "key_diversity", passed_on()),
        block_(p.optional<std::int32_t>("block_tokens", 128, 1, 1 << 20, "tokens that join those that stay so far")) {
    peer_ties_ = p.flag("peer_ties", false, "equal scores at a block's boundary fall as in torch.topk on a CPU");
  }
  [[nodiscard]] Protected protects() const override { return {}; }
  // Equally long lists.
  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kLeft; }

  void score(LayerStep& step, float* scores) override { clear_scores(step, scores); }
  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    for (std::int32_t s = 0; s < step.kv.num_sequences(); ++s) {
      const std::int32_t row = s * step.kv.kv_heads;
      if (keep[row] > 0 && keep[row] < step.kv.len[row]) choose(step, s, keep[row], scores);
    }
  }

 private:
  static PassedOn passed_on() { return {.wrapper = "blocks", .whole_step = false, .needs = {.output_weights = true}, .refines = false}; }

  void choose(LayerStep& step, std::int32_t sequence, std::int32_t keep, float* scores) const {
    const Ops::Frame frame(step.ops);
    const std::int32_t heads = step.kv.kv_heads, n = step.kv.len[sequence * heads];
    TokenLists lists{step.kv, sequence, keep, keep, keep, step.ops.ints(std::int64_t{heads} * keep)};
    step.ops(lists);
    for (std::int32_t at = keep; at < n; at += block_) {
      lists.begin = at, lists.end = std::min(n, at + block_);
      take_block(step, lists);
    }
    lists.scores = scores, lists.kind = TokenLists::Kind::kKeep;
    step.ops(lists);
  }

  void take_block(LayerStep& step, TokenLists lists) const {
    const Ops::Frame frame(step.ops);
    const std::int32_t heads = step.kv.kv_heads, keep = lists.num_listed, all = keep + lists.end - lists.begin;
    lists.token = step.ops.ints(std::int64_t{heads} * all);
    std::int32_t* const page = lists.slot = step.ops.host_ints(std::int64_t{heads} * all);
    std::fill_n(page, std::int64_t{heads} * all, 0);
    lists.kind = TokenLists::Kind::kCandidates;
    step.ops(lists);
    std::int32_t *len = step.ops.host_ints(heads), *page_begin = step.ops.host_ints(heads), *counts = step.ops.host_ints(heads);
    std::int64_t *first = step.ops.host_longs(heads + 1), *index_first = step.ops.host_longs(heads + 1);
    for (std::int32_t h = 0; h <= heads; ++h) {
      first[h] = std::int64_t{h} * all, index_first[h] = std::int64_t{h} * keep;
      if (h < heads) len[h] = all, page_begin[h] = h * all, counts[h] = keep;
    }
    SeqStep seq = step.seqs[static_cast<std::size_t>(lists.sequence)];
    LayerStep part{step.ops, step.model, step.layer, {&seq, 1}, step.kv, {}, step.seed, step.tensors, step.keeper};
    part.kv.num_rows = heads, part.kv.len = len, part.kv.first = first, part.kv.page_begin = page_begin, part.kv.page = page;
    part.kv.page_tokens = 1;
    part.in.w_o = step.in.w_o;
    float* of_part = step.ops.floats(first[heads]);
    inner().score(part, of_part);
    std::int32_t* index = step.ops.ints(index_first[heads]);
    step.ops(TopK{heads, first, of_part, counts, index_first, index, peer_ties_});
    lists.index = index, lists.kind = TokenLists::Kind::kChosen;
    step.ops(lists);
  }

  std::int32_t block_;
};

KVLAB_REGISTER(Scorer, Blocks, "blocks", "the prompt block by block, each cut together with what stays so far, by another score",
               "KeyDiff: Park et al. 2025, arXiv:2504.15364; kvpress's BlockPress, version 0.5.5");

}  // namespace

}  // namespace kvlab
