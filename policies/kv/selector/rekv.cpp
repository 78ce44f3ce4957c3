#include "kernels/score/reduce_heads_op.h"
#include "kernels/select/mean_query_op.h"
#include "kernels/select/page_summaries_op.h"
#include "policies/kv/selector/selection.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Section 3. Frames: fixed-length parts of the prompt. The first frame, the question and the answer are always read.
class ReKv final : public Budgeted<QuerySelector<TierTraffic>> {
 public:
  explicit ReKv(Params& p)
      : frame_(p.optional<std::int32_t>("frame_tokens", 196, 1, 1 << 16, "tokens of a frame")),
        first_(p.optional<std::int32_t>("first_frames", 1, 0, 1 << 16, "first frames, always read")),
        top_(p.optional<std::int32_t>("top_frames", 64, 1, 1 << 20, "frames retrieved")),
        question_(p.optional<std::int32_t>("question_tokens", 64, 1, 4096, "longest question looked at; its length where none is marked")),
        local_(p.optional<std::int32_t>("local_tokens", 15000, 0, 1 << 26, "newest tokens that stay on the GPU, read or not")) {}

  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .window_queries = question_}; }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver), key.add(seq.end()); }
  void whole_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver); }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }

  [[nodiscard]] Lower lower(std::int32_t) const override { return Lower::kKeysAndValues; }
  Selection stays(LayerStep& step) override {
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return held_frames(step, r) * frame_; });
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return std::min(first_ * frame_, tail[r]); });
    return expand(step, {.lists = no_units(step), .head = head, .tail = tail});
  }

  void update(LayerStep& step) override {
    const std::vector<Queries> window = last_queries(step.in.window, question_, step.model);
    std::vector<Queries> asked;
    for (std::size_t s = 0; s < step.seqs.size(); ++s) {
      const SeqStep& seq = step.seqs[s];
      const Queries none{nullptr, 0, 0};
      // The step's query asks only if no prompt was seen or the row lost tokens.
      asked.push_back(seq.completes_prompt()                                       ? question_of(window[s], step.seqs[s], step.model)
                      : seq.decoding() && lost(step, static_cast<std::int32_t>(s)) ? step.in.step[s]
                                                                                   : none);
    }
    if (std::any_of(asked.begin(), asked.end(), [](const Queries& q) { return q.count > 0; })) retrieve(step, asked);
    traffic_.begin(step, [&](std::int32_t r) { return held_frames(step, r); });
  }

  Selection select(LayerStep& step) override {
    const std::int32_t* tail = choices_.tails(step);
    if (traffic_.reads_all(step, all_whole(step, tail))) return {};
    const UnitLists lists = choices_.lists(step);
    traffic_.track(step, lists, lists, 2LL * frame_ * step.kv.head_dim * step.kv.kv_bytes);
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return tail[r] == 0 ? 0 : first_ * frame_; });
    return expand(step, {.lists = lists, .unit_tokens = frame_, .head = head, .tail = tail});
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    std::int64_t on_gpu = 0, frames = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      on_gpu += std::min<std::int64_t>(
          kv.len[r], static_cast<std::int64_t>(first_ + top(budget_.of(kv.len[r]))) * frame_ + local(budget_.of(kv.len[r])));
      frames += kv.len[r] / frame_;
    }
    return keep_on_gpu(held, on_gpu, kv.total()).with_gpu(frames * model.head_dim * model.kv_bytes);
  }

 private:
  [[nodiscard]] std::int32_t top(std::int32_t budget) const { return is_given(budget_) ? std::max(1, budget / frame_ - first_) : top_; }
  [[nodiscard]] std::int32_t local(std::int32_t budget) const { return is_given(budget_) ? std::min(local_, budget) : local_; }
  // 0 if the whole row is read.
  [[nodiscard]] std::int32_t held_frames(const LayerStep& step, std::int32_t r) {
    return std::min(choices_.at(step, r).tail, std::max(0, step.kv.len[r] - local(tokens_of(budget_, step, r)))) / frame_;
  }
  [[nodiscard]] std::int32_t question_begin(const SeqStep& seq) const {
    return seq.question_begin >= 0 ? seq.question_begin : std::max(0, seq.prompt_tokens - question_);
  }
  [[nodiscard]] Queries question_of(const Queries& window, const SeqStep& seq, const ModelShape& model) const {
    const std::int32_t last = window.first_position + std::max(0, window.count - 1);
    return queries_from(window, std::min(question_begin(seq), last), model);
  }
  [[nodiscard]] bool lost(LayerStep& step, std::int32_t s) {
    const std::int32_t row = s * step.kv.kv_heads;
    return !choices_.at(step, row).mark.grew_to(step.seqs[static_cast<std::size_t>(s)], step.kv.len[row]);
  }

  void retrieve(LayerStep& step, const std::vector<Queries>& asked) {
    const std::int32_t n = step.kv.num_rows;
    std::int32_t *keep = step.ops.host_ints(n), *end = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      keep[r] = end[r] = 0;
      const SeqStep& seq = seq_of(step, r);
      if (asked[static_cast<std::size_t>(step.kv.sequence(r))].count == 0) continue;
      const std::int32_t frames = std::max(0, step.kv.len[r] - (seq.end() - question_begin(seq))) / frame_;
      KeptUnits::Choice& c = choices_.at(step, r);
      c = {{step.kv.len[r], seq.end()}, 0, 0};
      const std::int32_t most = top(tokens_of(budget_, step, r));
      if (frames <= first_ + most) continue;
      c.tail = frames * frame_;
      c.count = keep[r] = most;
      end[r] = frames;
    }
    if (all_whole(step, end)) return;
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return end[r]; });
    float* scores = judge(step, asked, first, end);
    mask_ends(step, first, per_row(step, [&](std::int32_t r) { return end[r] == 0 ? 0 : first_; }), end, scores);
    choices_.keep(step, best_units(step, first, scores, keep));
  }

  float* judge(LayerStep& step, const std::vector<Queries>& asked, const std::int64_t* first, const std::int32_t* end) {
    const std::int32_t sequences = step.kv.num_sequences(), width = step.model.q_heads * step.model.head_dim;
    PageSummaries means;
    means.kv = step.kv;
    means.span_tokens = means.stride_tokens = frame_;
    means.kv.len = per_row(step, [&](std::int32_t r) { return end[r] * frame_; });
    means.from = per_row(step, [](std::int32_t) { return 0; });
    means.out = means_.rows(step, [&](std::int32_t r) { return static_cast<std::int64_t>(end[r]) * step.kv.head_dim; });
    step.ops(means);
    float* mean = step.ops.floats(static_cast<std::int64_t>(sequences) * width);
    step.ops(MeanQuery{sequences, width, asked.data(), mean});
    const std::vector<Queries> question = queries_over(step, mean);
    PageScores pages = page_scores(step, means.out, first, PageScores::Kind::kDot, PageScores::Heads::kSum);
    pages.queries = question.data();
    float* scores = run_scores(step, pages);
    KvRows frames = step.kv;
    frames.first = first, frames.len = end;
    step.ops(ReduceHeads{frames, ReduceHeads::Kind::kSum, scores, false});
    for (std::int32_t s = 0; s < sequences; ++s)
      if (asked[static_cast<std::size_t>(s)].count > 0) means_.forget(step.seqs[static_cast<std::size_t>(s)].index);
    return scores;
  }

  std::int32_t frame_, first_, top_, question_, local_;
  KeptUnits choices_{*this};  // frames
  RowMemory<float> means_{*this};
};

KVLAB_REGISTER(Selector, ReKv, "rekv", "stretches of the prompt retrieved once per question, the same for all heads of a layer",
               "ReKV: Di et al. 2025, arXiv:2503.00540");

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
