#include "kernels/select/copy_queries_op.h"
#include "kernels/select/query_gram_op.h"
#include "policies/kv/selector/budget_share.h"
#include "policies/kv/selector/code_scores_op.h"
#include "policies/kv/selector/key_codes/key_codes.h"
#include "policies/kv/selector/tiers.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// The codebook comes from the prompt's keys before RoPE; far queries are rotated to one fixed distance.
class A2ats final : public Budgeted<TierSelector> {
 public:
  explicit A2ats(Params& p)
      : sinks_(p.optional<std::int32_t>("sink_tokens", 8, 0, 1 << 20, "first tokens, on the GPU")),
        local_(p.optional<std::int32_t>("local_tokens", 64, 1, 1 << 20, "newest tokens, on the GPU and without a code")),
        top_frac_(p.optional<double>("top_frac", 0.03, 1e-5, 1, "share of the row chosen by each query head; a KV head reads the union")),
        max_codes_(p.optional<std::int32_t>("max_codes", 4096, 1, 4096, "centers of a KV head's codebook, at most")),
        tokens_per_code_(
            p.optional<std::int32_t>("tokens_per_code", 16, 1, 1 << 20, "prompt tokens for each center, where they make fewer")),
        far_(p.optional<std::int32_t>("far_tokens", 2048, 0, 1 << 20, "distance at which far queries count")),
        rounds_(p.optional<std::int32_t>("rounds", 10, 1, 1000, "rounds of k-means")) {}

  [[nodiscard]] Needs needs() const override { return {.step_queries = true, .prompt_queries = true, .turns = true}; }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver), key.add(seq.end()); }

  [[nodiscard]] Lower lower(std::int32_t) const override { return Lower::kKeysAndValues; }

  void update(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* covered = progress_.advance(step);
    learn(step);
    KeyCodes assign;
    assign.kv = step.kv;
    const std::vector<float> frequencies = rope_frequencies(step, 0);
    assign.frequencies = or_null(frequencies);
    assign.from = per_row(step, [&](std::int32_t r) { return covered[r] == 0 ? 0 : rows_.at(step, r).coded; });
    assign.to = per_row(
        step, [&](std::int32_t r) { return rows_.at(step, r).codes == 0 ? 0 : std::max(0, step.kv.len[r] - sizes(step, r).recent); });
    for (std::int32_t r = 0; r < n; ++r) rows_.at(step, r).coded = assign.to[r];
    assign.codes = codes(step);
    assign.root = root(step), assign.centers = centers(step), assign.code = code(step);
    step.ops(assign);
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
  }

  Selection select(LayerStep& step) override {
    const std::int32_t n = step.kv.num_rows, group = step.kv.group;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return rows_.at(step, r).coded; });
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return std::min(sizes(step, r).sinks, tail[r]); });
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return tail[r] - head[r]; });
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) { return std::min(sizes(step, r).top, tail[r] - head[r]); });
    if (traffic_.reads_all(step, keeps_all(step, first, keep))) return {};
    const std::vector<Queries> far = far_queries(step);
    CodeScores scores;
    scores.num_rows = n;
    scores.kv_heads = step.kv.kv_heads, scores.group = group, scores.head_dim = step.kv.head_dim, scores.kv_bytes = step.kv.kv_bytes;
    scores.queries = far.data();
    scores.vectors = codes(step);
    scores.vector = centers(step), scores.code = code(step);
    scores.begin = head, scores.first = first;
    scores.scores = step.ops.floats(group * first[n]);
    step.ops(scores);
    UnitLists found = united(step, best_units(step.ops, n, group, first, scores.scores, keep), first, keep);
    const Selection selection = expand(step, {.lists = found, .base = head, .head = head, .tail = tail});
    const std::int32_t* count = per_row(step, [&](std::int32_t r) { return static_cast<std::int32_t>(found.size(r)); });
    traffic_.track(step, in_row(step, selection, head, count), lists_of(selection), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    return selection;
  }

  // 12 bits per coded token, and the codebook.
  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    std::int64_t on_gpu = 0, codes = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const AttendedParts size = sizes(budget_.of(kv.len[r]), kv.len[r]);
      on_gpu += std::min(kv.len[r], size.sinks + size.recent);
      codes += (3LL * std::max(0, kv.len[r] - size.recent) + 1) / 2 +
               static_cast<std::int64_t>(codes_of(kv.len[r])) * model.head_dim * model.kv_bytes;
    }
    return keep_on_gpu(held, on_gpu, kv.total()).with_gpu(codes);
  }

 private:
  struct Row {
    std::int32_t codes = 0, coded = 0;  // centers; coded tokens
  };
  enum State : char { kNone, kSeen };

  [[nodiscard]] std::int32_t codes_of(std::int32_t len) const { return len == 0 ? 0 : std::clamp(len / tokens_per_code_, 1, max_codes_); }
  [[nodiscard]] AttendedParts sizes(std::int32_t budget, std::int32_t len) const {
    if (!is_given(budget_)) return {sinks_, local_, std::max(1, static_cast<std::int32_t>(top_frac_ * len))};
    const std::int32_t sinks = std::min(sinks_, budget / 4), local = std::clamp(budget / 2, 1, local_);
    return {sinks, local, std::max(1, budget - sinks - local)};
  }
  [[nodiscard]] AttendedParts sizes(const LayerStep& step, std::int32_t r) const {
    return sizes(tokens_of(budget_, step, r), step.kv.len[r]);
  }
  std::int32_t head_of(const LayerStep& step, std::int32_t r) override { return sizes(step, r).sinks; }
  // Tokens without a code stay; 0 if the whole row is read.
  std::int32_t held_from(const LayerStep& step, std::int32_t r) override {
    const std::int32_t coded = rows_.at(step, r).coded;
    return coded - std::min(sizes(step, r).sinks, coded) <= sizes(step, r).top ? 0 : coded;
  }
  const std::int32_t* codes(const LayerStep& step) {
    return per_row(step, [&](std::int32_t r) { return rows_.at(step, r).codes; });
  }
  float* const* root(const LayerStep& step) {
    return root_.rows(step, [&](std::int32_t) { return static_cast<std::int64_t>(step.kv.head_dim) * step.kv.head_dim; });
  }
  float* const* centers(const LayerStep& step) {
    return centers_.rows(step, [&](std::int32_t r) { return static_cast<std::int64_t>(rows_.at(step, r).codes) * step.kv.head_dim; });
  }
  std::int32_t* const* code(const LayerStep& step) {
    return code_.rows(step, [&](std::int32_t r) { return step.kv.len[r]; });
  }

  std::vector<Queries> far_queries(LayerStep& step) {
    const std::int64_t width = static_cast<std::int64_t>(step.model.q_heads) * step.model.head_dim;
    const std::int32_t sequences = step.kv.num_sequences();
    float* const* out = turned_.sequences(step, [&](std::int32_t s) { return width * step.in.step[static_cast<std::size_t>(s)].count; });
    const std::vector<float> frequencies = rope_frequencies(step, 0);
    step.ops(CopyQueries{.num_sequences = sequences,
                         .num_heads = step.model.q_heads,
                         .head_dim = step.model.head_dim,
                         .queries = step.in.step.data(),
                         .out = out,
                         .kind = CopyQueries::Kind::kTurned,
                         .position = far_,
                         .frequencies = or_null(frequencies)});
    std::vector<Queries> far(step.in.step.begin(), step.in.step.end());
    for (std::int32_t s = 0; s < sequences; ++s) far[static_cast<std::size_t>(s)].data = out[s];
    return far;
  }

  // At the prompt's end; without a prompt, at the first step.
  void learn(LayerStep& step) {
    const std::int32_t sequences = step.kv.num_sequences(), n = step.kv.num_rows;
    std::int32_t *fresh = step.ops.host_ints(sequences), *train = step.ops.host_ints(n);
    bool any = false;
    for (std::int32_t s = 0; s < sequences; ++s) {
      const SeqStep& seq = step.seqs[static_cast<std::size_t>(s)];
      char& state = state_.of_sequence(step, s);
      const bool begins = seq.seen_tokens == 0 || state == kNone, ends = seq.completes_prompt() || (seq.decoding() && state == kNone);
      fresh[s] = begins ? 1 : seq.decoding() ? 2 : 0;
      any |= fresh[s] != 2;
      state = kSeen;
      for (std::int32_t r = s * step.kv.kv_heads; r < (s + 1) * step.kv.kv_heads; ++r) {
        train[r] = ends ? std::min(codes_of(seq.prompt_tokens), step.kv.len[r]) : 0;
        if (seq.seen_tokens == 0 || ends) rows_.at(step, r) = {train[r], 0};
      }
    }
    if (!any) return;
    const std::int64_t d = step.kv.head_dim;
    const std::vector<Queries> far = far_queries(step);
    float* const* abs_sum = abs_sum_.rows(step, [&](std::int32_t) { return d; });
    float* const* gram = gram_.rows(step, [&](std::int32_t) { return d * d; });
    step.ops(QueryGram{n, step.kv.kv_heads, step.kv.group, step.kv.head_dim, far.data(), fresh, true, abs_sum, gram});
    KeyCodes codebook{.kv = step.kv, .kind = KeyCodes::Kind::kTrain};
    const std::vector<float> frequencies = rope_frequencies(step, 0);
    codebook.frequencies = or_null(frequencies);
    codebook.rounds = rounds_;
    codebook.codes = train;
    std::int64_t* seeds = step.ops.host_longs(n);
    for (std::int32_t r = 0; r < n; ++r) seeds[r] = static_cast<std::int64_t>(step.seed) + step.layer * 4096LL + r % step.kv.kv_heads;
    codebook.seeds = seeds;
    codebook.gram = gram, codebook.root = root(step), codebook.centers = centers(step);
    step.ops(codebook);
  }

  std::int32_t sinks_, local_;
  double top_frac_;
  std::int32_t max_codes_, tokens_per_code_, far_, rounds_;
  RowMemory<float> abs_sum_{*this}, gram_{*this}, root_{*this}, centers_{*this}, turned_{*this};  // turned_ per sequence
  RowMemory<std::int32_t> code_{*this};
  PerRow<Row> rows_{*this};
  RowProgress progress_{*this};
  PerRow<char> state_{*this};
};

KVLAB_REGISTER(Selector, A2ats, "a2ats", "tokens by logits looked up in a codebook of keys before RoPE; K and V on the host",
               "A2ATS: He et al. 2025, arXiv:2502.12665, sections 3.1 to 3.3");

}  // namespace

}  // namespace kvlab
