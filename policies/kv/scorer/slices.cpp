#include <algorithm>

#include "kernels/score/mark_top_op.h"
#include "policies/kv/scorer/row_parts.h"
#include "policies/kv/scorer/scorer_wrapper.h"

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

}  // namespace

}  // namespace kvlab
