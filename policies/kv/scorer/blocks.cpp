#include <algorithm>

#include "kernels/select/top_k/top_k.h"
#include "policies/kv/scorer/scorer_wrapper.h"
#include "policies/kv/scorer/token_lists_op.h"

namespace kvlab {

namespace {

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
