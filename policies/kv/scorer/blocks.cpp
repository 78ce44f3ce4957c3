#include <algorithm>
#include <vector>

#include "kernels/select/top_k/top_k.h"
#include "policies/kv/scorer/token_lists/token_lists.h"
#include "policies/kv/scorer_wrapper.h"

namespace kvlab {

namespace {

// The prompt block by block: the tokens that stay so far and the next block are scored together, and the best of them stay, as if the
// prompt had been cut after each block. Scores that compare tokens with one another depend on it. KeyDiff, Park et al. 2025, section 4, in
// the form of kvpress's BlockPress, which cuts once after the prompt.
class Blocks final : public ScorerWrapper {
 public:
  explicit Blocks(Params& p)
      : ScorerWrapper(p, "key_diversity"),
        block_(p.optional<std::int32_t>("block_tokens", 128, 1, 1 << 20, "tokens that join those that stay so far")),
        peer_ties_(p.flag("peer_ties", false, "equal scores at a block's boundary fall as in torch.topk on a CPU")) {
    if (p.is_describing()) return;
    const Needs needs = inner().needs();
    if (needs.window_queries > 0 || needs.step_queries || needs.pre_rope_queries || needs.pre_rope_keys || needs.hidden || needs.question ||
        !needs.pass.empty() || inner().num_words() > 0)
      p.fail_at("of", "'blocks' is for scorers that read keys and values alone, such as key_diversity or key_norm");
  }
  [[nodiscard]] Needs needs() const override {
    Needs needs = ScorerWrapper::needs();
    needs.cpu_only = true;
    return needs;
  }
  [[nodiscard]] Protected protects() const override { return {}; }
  // The lists are as long in all heads.
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
  void choose(LayerStep& step, std::int32_t sequence, std::int32_t keep, float* scores) const {
    const Ops::Frame frame(step.ops);
    const std::int32_t heads = step.kv.kv_heads, n = step.kv.len[sequence * heads];
    std::int32_t* listed = step.ops.ints(std::int64_t{heads} * keep);
    step.ops(ListChosen{heads, keep, 0, nullptr, nullptr, listed, true});
    for (std::int32_t at = keep; at < n; at += block_) take_block(step, sequence, keep, at, std::min(n, at + block_), listed);
    step.ops(KeepListed{step.kv, sequence, keep, listed, scores});
  }

  void take_block(LayerStep& step, std::int32_t sequence, std::int32_t keep, std::int32_t begin, std::int32_t end,
                  std::int32_t* listed) const {
    const Ops::Frame frame(step.ops);
    const std::int32_t heads = step.kv.kv_heads, all = keep + end - begin;
    std::int32_t *token = step.ops.ints(std::int64_t{heads} * all), *page = step.ops.host_ints(std::int64_t{heads} * all);
    std::fill_n(page, std::int64_t{heads} * all, 0);
    step.ops(ListCandidates{step.kv, sequence, keep, begin, end, listed, token, page});
    std::int32_t *len = step.ops.host_ints(heads), *page_begin = step.ops.host_ints(heads), *counts = step.ops.host_ints(heads);
    std::int64_t *first = step.ops.host_longs(heads + 1), *index_first = step.ops.host_longs(heads + 1);
    for (std::int32_t h = 0; h <= heads; ++h) {
      first[h] = std::int64_t{h} * all, index_first[h] = std::int64_t{h} * keep;
      if (h < heads) len[h] = all, page_begin[h] = h * all, counts[h] = keep;
    }
    SeqStep seq = step.seqs[static_cast<std::size_t>(sequence)];
    LayerStep part{step.ops, step.model, step.layer, {&seq, 1}, step.kv, {}, step.seed, step.memory, step.keeper};
    part.kv.num_rows = heads, part.kv.len = len, part.kv.first = first, part.kv.page_begin = page_begin, part.kv.page = page;
    part.kv.page_tokens = 1;
    float* of_part = step.ops.floats(first[heads]);
    inner().score(part, of_part);
    std::int32_t* index = step.ops.ints(index_first[heads]);
    step.ops(TopK{heads, first, of_part, counts, index_first, index, peer_ties_});
    step.ops(ListChosen{heads, keep, all, token, index, listed, false});
  }

  std::int32_t block_;
  bool peer_ties_;
};

KVLAB_REGISTER(Scorer, Blocks, "blocks", "the prompt block by block, each cut together with what stays so far, by another score",
               "KeyDiff: Park et al. 2025, arXiv:2504.15364; kvpress's BlockPress, version 0.5.5");

}  // namespace

}  // namespace kvlab
