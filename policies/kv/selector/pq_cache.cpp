

#include "kernels/select/copy_queries_op.h"
#include "kernels/select/query_gram_op.h"
#include "policies/kv/selector/code_scores_op.h"
#include "policies/kv/selector/key_codes/key_codes.h"
#include "policies/kv/selector/product_codes_op.h"
#include "policies/kv/selector/selection.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Tokens between the first and the newest ones are known by codes, which tell what to bring.
class CodedSelector : public Budgeted<TierSelector> {
 public:
  [[nodiscard]] Lower lower(std::int32_t) const final { return Lower::kKeysAndValues; }

  Selection select(LayerStep& step) final {
    const std::int32_t n = step.kv.num_rows;
    const std::int32_t* tail = per_row(step, [&](std::int32_t r) { return rows_.at(step, r).coded; });
    const std::int32_t* head = per_row(step, [&](std::int32_t r) { return std::min(sizes(step, r).sinks, tail[r]); });
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return tail[r] - head[r]; });
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) { return std::min(sizes(step, r).top, tail[r] - head[r]); });
    if (traffic_.reads_all(step, keeps_all(step, first, keep))) return {};
    CodeScores scores{.num_rows = n, .kv_heads = step.kv.kv_heads, .group = step.kv.group, .head_dim = step.kv.head_dim};
    scores.kv_bytes = step.kv.kv_bytes;
    scores.vectors = counts(step);
    scores.vector = centers(step), scores.code = code(step);
    scores.begin = head, scores.first = first;
    const UnitLists found = choose(step, scores, keep);
    const Selection selection = expand(step, {.lists = found, .base = head, .head = head, .tail = tail});
    const std::int32_t* count = per_row(step, [&](std::int32_t r) { return static_cast<std::int32_t>(found.size(r)); });
    traffic_.track(step, in_row(step, selection, head, count), lists_of(selection), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    return selection;
  }

 protected:
  struct Row {
    std::int32_t centers = 0, coded = 0;  // of a part; end of the coded tokens
  };

  [[nodiscard]] virtual AttendedParts sizes(const LayerStep& step, std::int32_t r) const = 0;
  // keep[r] tokens of each row, from scores to be computed.
  virtual UnitLists choose(LayerStep& step, CodeScores scores, const std::int32_t* keep) = 0;
  std::int32_t head_of(const LayerStep& step, std::int32_t r) final { return sizes(step, r).sinks; }
  // Tokens without a code stay; 0 if the whole row is read.
  std::int32_t held_from(const LayerStep& step, std::int32_t r) final {
    const std::int32_t coded = rows_.at(step, r).coded;
    return coded - std::min(sizes(step, r).sinks, coded) <= sizes(step, r).top ? 0 : coded;
  }

  // Ends of the tokens to code, up to the newest ones; they count as coded.
  const std::int32_t* code_older(const LayerStep& step) {
    const std::int32_t* to = per_row(
        step, [&](std::int32_t r) { return rows_.at(step, r).centers == 0 ? 0 : std::max(0, step.kv.len[r] - sizes(step, r).recent); });
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) rows_.at(step, r).coded = to[r];
    return to;
  }
  const std::int32_t* counts(const LayerStep& step) {
    return per_row(step, [&](std::int32_t r) { return rows_.at(step, r).centers; });
  }
  float* const* centers(const LayerStep& step) {
    return centers_.rows(step, [&](std::int32_t r) { return std::int64_t{rows_.at(step, r).centers} * step.kv.head_dim; });
  }
  std::int32_t* const* code(const LayerStep& step) {
    return code_.rows(step, [&](std::int32_t r) { return std::int64_t{step.kv.len[r]} * width_; });
  }

  PerRow<Row> rows_{*this};
  RowProgress progress_{*this};
  std::int32_t width_ = 1;  // numbers of a token's code

 private:
  RowMemory<float> centers_{*this};
  RowMemory<std::int32_t> code_{*this};
};

// The codebook comes from the prompt's keys before RoPE; far queries are rotated to one fixed distance.
class A2ats final : public CodedSelector {
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

  void update(LayerStep& step) override {
    const std::int32_t* covered = progress_.advance(step);
    learn(step);
    KeyCodes assign;
    assign.kv = step.kv;
    const std::vector<float> frequencies = rope_frequencies(step, 0);
    assign.frequencies = or_null(frequencies);
    assign.from = per_row(step, [&](std::int32_t r) { return covered[r] == 0 ? 0 : rows_.at(step, r).coded; });
    assign.to = code_older(step);
    assign.codes = counts(step);
    assign.root = root(step), assign.centers = centers(step), assign.code = code(step);
    step.ops(assign);
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
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
  enum State : char { kNone, kSeen };

  [[nodiscard]] std::int32_t codes_of(std::int32_t len) const { return len == 0 ? 0 : std::clamp(len / tokens_per_code_, 1, max_codes_); }
  [[nodiscard]] AttendedParts sizes(std::int32_t budget, std::int32_t len) const {
    if (!is_given(budget_)) return {sinks_, local_, std::max(1, static_cast<std::int32_t>(top_frac_ * len))};
    const std::int32_t sinks = std::min(sinks_, budget / 4), local = std::clamp(budget / 2, 1, local_);
    return {sinks, local, std::max(1, budget - sinks - local)};
  }
  [[nodiscard]] AttendedParts sizes(const LayerStep& step, std::int32_t r) const override {
    return sizes(tokens_of(budget_, step, r), step.kv.len[r]);
  }
  UnitLists choose(LayerStep& step, CodeScores scores, const std::int32_t* keep) override {
    const std::vector<Queries> far = far_queries(step);
    scores.queries = far.data();
    scores.scores = step.ops.floats(scores.group * scores.first[scores.num_rows]);
    step.ops(scores);
    return united(step, best_units(step.ops, scores.num_rows, scores.group, scores.first, scores.scores, keep), scores.first, keep);
  }

  float* const* root(const LayerStep& step) {
    return root_.rows(step, [&](std::int32_t) { return static_cast<std::int64_t>(step.kv.head_dim) * step.kv.head_dim; });
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
  RowMemory<float> abs_sum_{*this}, gram_{*this}, root_{*this}, turned_{*this};  // turned_ per sequence
  PerRow<char> state_{*this};
};

KVLAB_REGISTER(Selector, A2ats, "a2ats", "tokens by logits looked up in a codebook of keys before RoPE; K and V on the host",
               "A2ATS: He et al. 2025, arXiv:2502.12665, sections 3.1 to 3.3");

// The GPU keeps first, newest and the last step's tokens; the paper has a cache of blocks.
class PqCache final : public CodedSelector {
 public:
  explicit PqCache(Params& p)
      : sinks_(p.optional<std::int32_t>("sink_tokens", 32, 0, 1 << 20, "first tokens, on the GPU")),
        read_frac_(p.optional<double>("read_frac", 0.1, 1e-5, 1, "share of the prompt read beside them: half newest tokens, half found")),
        shape_{p.optional<std::int32_t>("parts", 2, 1, 64, "equal parts of a key's channels"),
               p.optional<std::int32_t>("centers", 64, 2, 4096,
                                        "of a part; a sequence with fewer tokens beside the first ones is read whole")},
        rounds_(p.optional<std::int32_t>("rounds", 10, 1, 1000, "rounds of k-means")) {
    width_ = shape_.parts;
  }

  [[nodiscard]] std::string refuses(const ModelShape& model) const override {
    if (model.head_dim % shape_.parts == 0) return "";
    return "selector 'pq_cache' cuts the " + std::to_string(model.head_dim) + " channels of a head into " + std::to_string(shape_.parts) +
           " equal parts: give 'parts' that divide them";
  }
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.prompt_tokens, StepKey::kForEver), key.add(seq.end()); }
  void whole_key(const SeqStep& seq, StepKey& key) const override {
    const AttendedParts size = sizes(budget_.of(seq.prompt_tokens), seq.prompt_tokens);
    const std::int32_t others = seq.end() - size.sinks - size.recent;
    const bool is_steady = others > size.top + 1 && seq.end() - 2 - size.sinks >= shape_.centers;
    key.add(seq.prompt_tokens, StepKey::kForEver);
    key.add(is_steady ? -1 : seq.end(), is_steady ? StepKey::kForEver : 1);
  }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }

  void update(LayerStep& step) override {
    const std::int32_t* covered = progress_.advance(step);
    train(step);
    ProductCodes assign{.kv = step.kv, .shape = shape_};
    assign.from =
        per_row(step, [&](std::int32_t r) { return std::max(sizes(step, r).sinks, covered[r] == 0 ? 0 : rows_.at(step, r).coded); });
    assign.to = code_older(step);
    assign.centers = counts(step);
    assign.center = centers(step), assign.code = code(step);
    step.ops(assign);
    traffic_.begin(step, [&](std::int32_t r) { return held_from(step, r); });
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    std::int64_t on_gpu = 0, codes = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const AttendedParts size = sizes(budget_.of(kv.len[r]), kv.len[r]);
      const std::int32_t others = std::max(0, kv.len[r] - size.sinks - size.recent);
      on_gpu += std::min(kv.len[r], size.sinks + size.recent + size.top);
      codes += std::int64_t{others} * shape_.code_bytes();
      if (kv.len[r] - size.sinks >= shape_.centers) codes += std::int64_t{shape_.centers} * model.head_dim * model.kv_bytes;
    }
    return keep_on_gpu(held, on_gpu, kv.total()).with_gpu(codes);
  }

 private:
  [[nodiscard]] AttendedParts sizes(std::int32_t budget, std::int32_t prompt) const {
    if (!is_given(budget_)) {
      const std::int32_t half = std::max(1, static_cast<std::int32_t>(read_frac_ * (prompt - sinks_) * 0.5));
      return {sinks_, half, half};
    }
    const std::int32_t sinks = std::min(sinks_, budget / 4), recent = std::max(1, (budget - sinks) / 2);
    return {sinks, recent, std::max(1, budget - sinks - recent)};
  }
  [[nodiscard]] AttendedParts sizes(const LayerStep& step, std::int32_t r) const override {
    return sizes(tokens_of(budget_, step, r), seq_of(step, r).prompt_tokens);
  }
  UnitLists choose(LayerStep& step, CodeScores scores, const std::int32_t* keep) override {
    scores.kind = CodeScores::Kind::kAttention;
    scores.parts = shape_.parts, scores.code_bits = 8 * shape_.code_bytes();
    scores.queries = step.in.step.data();
    scores.scores = step.ops.floats(scores.first[scores.num_rows]);
    step.ops(scores);
    return best_units(step, scores.first, scores.scores, keep);
  }

  // Once: at the prompt's end, or later, with a token per center after the sinks.
  void train(LayerStep& step) {
    const std::int32_t n = step.kv.num_rows;
    std::int32_t* end = step.ops.host_ints(n);
    for (std::int32_t r = 0; r < n; ++r) {
      const SeqStep& seq = seq_of(step, r);
      Row& row = rows_.at(step, r);
      if (seq.seen_tokens == 0) row = {};
      const bool can_train = step.kv.len[r] - sizes(step, r).sinks >= shape_.centers;
      const bool trains = can_train && (seq.completes_prompt() || (seq.decoding() && row.centers == 0));
      end[r] = trains ? step.kv.len[r] : 0;
      if (trains) row = {shape_.centers, 0};
    }
    if (all_whole(step, end)) return;
    step.ops(ProductCodes{.kv = step.kv,
                          .shape = shape_,
                          .kind = ProductCodes::Kind::kTrain,
                          .from = per_row(step, [&](std::int32_t r) { return sizes(step, r).sinks; }),
                          .to = end,
                          .centers = counts(step),
                          .center = centers(step),
                          .rounds = rounds_});
  }

  std::int32_t sinks_;
  double read_frac_;
  ProductShape shape_;
  std::int32_t rounds_;
};

KVLAB_REGISTER(Selector, PqCache, "pq_cache", "tokens by attention looked up in product codes of their keys; K and V in CPU memory",
               "PQCache: Zhang et al. 2024, arXiv:2407.12820");

}  // namespace

}  // namespace kvlab
