#include "kernels/select/page_summaries_op.h"
#include "policies/kv/selector/budget_share.h"

namespace kvlab {

namespace {

// TriForce's retrieval cache. Generated tokens are always read.
class RetrievalChunks final : public Budgeted<QuerySelector<UnitTraffic>> {
 public:
  explicit RetrievalChunks(Params& p) : chunk_(p.optional<std::int32_t>("chunk_tokens", 8, 1, 1 << 16, "tokens of a chunk")) {
    budget_ = {p.optional<std::int32_t>("budget_tokens", 4096, 1, 1 << 24, "prompt tokens attended to per KV head")};
  }

  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver); }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }

  // Before the prompt's keys are encoded.
  void update(LayerStep& step) override {
    const std::int32_t* end = per_row(step, [&](std::int32_t r) {
      const std::int32_t chunks = step.kv.len[r] / chunk_;
      return seq_of(step, r).completes_prompt() && chooses_of(chunks, tokens_of(budget_, step, r)) ? chunks : 0;
    });
    summarize(step, end);
  }

  Selection select(LayerStep& step) override {
    build(step);
    const std::int32_t* tail = choices_.tails(step);
    if (all_whole(step, tail)) return {};
    const UnitLists lists = choices_.lists(step);
    traffic_.track(step, lists);
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return tail[r] == 0 ? 0 : chunk_; });
    return expand(step, {.lists = lists, .unit_tokens = chunk_, .head = head, .tail = tail});
  }

  [[nodiscard]] TierBytes resident(const ModelShape&, const KvRows& kv, const TierBytes& held) const override {
    return held.with_gpu(sum_rows(kv, [&](std::int32_t r) {  // lists only: chunks are not copied
      return kv.len[r] > budget_.of(kv.len[r]) ? 4LL * (budget_.of(kv.len[r]) / chunk_) : 0;
    }));
  }

 private:
  [[nodiscard]] std::int32_t kept_chunks(std::int32_t budget) const { return std::max(1, budget / chunk_); }
  [[nodiscard]] bool chooses_of(std::int32_t chunks, std::int32_t budget) const {
    return chunks * chunk_ > budget && chunks > kept_chunks(budget);
  }

  float* const* means(const LayerStep& step, const std::int32_t* end) {
    return means_.rows(step, [&](std::int32_t r) { return static_cast<std::int64_t>(end[r]) * step.kv.head_dim; });
  }

  void summarize(LayerStep& step, const std::int32_t* end) {
    PageSummaries means;
    means.kv = step.kv;
    means.span_tokens = means.stride_tokens = chunk_;
    means.kv.len = per_row(step, [&](std::int32_t r) {
      const bool has_them = end[r] == 0 || summarized_.at(step, r).grew_to(seq_of(step, r), step.kv.len[r]);
      if (!has_them) summarized_.at(step, r) = {step.kv.len[r], seq_of(step, r).end()};
      return has_them ? 0 : end[r] * chunk_;
    });
    if (all_whole(step, means.kv.len)) return;
    means.from = per_row(step, [](std::int32_t) { return 0; });
    means.out = this->means(step, end);
    step.ops(means);
  }

  void build(LayerStep& step) {
    const std::int32_t n = step.kv.num_rows;
    std::int32_t* keep = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      KeptUnits::Choice& c = choices_.at(step, r);
      const SeqStep& seq = seq_of(step, r);
      keep[r] = 0;
      if (c.mark.grew_to(seq, step.kv.len[r])) continue;
      const std::int32_t generated = std::max(seq.new_tokens, seq.end() - seq.prompt_tokens);
      const std::int32_t chunks = std::max(0, step.kv.len[r] - generated) / chunk_;
      c = {{step.kv.len[r], seq.end()}, 0, 0};
      const std::int32_t budget = tokens_of(budget_, step, r);
      if (!chooses_of(chunks, budget)) continue;
      c.tail = chunks * chunk_;
      c.count = keep[r] = kept_chunks(budget) - 1;
    }
    const std::int32_t* end = per_row(step, [&](std::int32_t r) { return keep[r] == 0 ? 0 : choices_.at(step, r).tail / chunk_; });
    if (!all_whole(step, end)) retrieve(step, keep, end);
  }

  void retrieve(LayerStep& step, const std::int32_t* keep, const std::int32_t* end) {
    summarize(step, end);
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return end[r]; });
    float* scores = run_scores(step, page_scores(step, means(step, end), first, PageScores::Kind::kDot, PageScores::Heads::kMean));
    mask_ends(step, first, per_row(step, [&](std::int32_t r) { return end[r] == 0 ? 0 : 1; }), end, scores);
    choices_.keep(step, best_units(step, first, scores, keep));
    for (std::int32_t s = 0; s < step.kv.num_sequences() && step.layer == step.model.num_layers - 1; ++s)
      if (keep[s * step.kv.kv_heads] > 0) {
        means_.forget(step.seqs[static_cast<std::size_t>(s)].index);
        summarized_.forget(step.seqs[static_cast<std::size_t>(s)].index);
      }
  }

  std::int32_t chunk_;
  KeptUnits choices_{*this};  // chunks
  PerRow<RowMark> summarized_{*this};
  RowMemory<float> means_{*this};
};

KVLAB_REGISTER(Selector, RetrievalChunks, "retrieval_chunks", "chunks of the prompt retrieved once by the first decode query",
               "TriForce: Sun et al. 2024, arXiv:2404.11912");

}  // namespace

}  // namespace kvlab
