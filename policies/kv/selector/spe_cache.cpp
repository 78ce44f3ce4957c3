#include "policies/kv/selector/low_bit_copy_op.h"
#include "policies/kv/selector/tiers.h"

namespace kvlab {

namespace {

// Recordings have no guessed tokens: the guess is the last step's query, or the step's own (a right guess).
class SpeCache final : public Budgeted<QuerySelector<TierTraffic>> {
 public:
  explicit SpeCache(Params& p)
      : top_(p.optional<std::int32_t>("top_tokens", 64, 1, 1 << 24, "tokens brought in full precision per KV head and step")),
        residual_(p.optional<std::int32_t>("residual_tokens", 128, 1, 1 << 16, "newest tokens, in full precision on the GPU")),
        code_{p.optional<std::int32_t>("bits", 2, 1, 8, "of a code in the copy"),
              p.optional<std::int32_t>("group_tokens", 32, 1, 1024,
                                       "tokens of a channel of K, or channels of a token of V, that share a scale")},
        looks_ahead_(p.choice("guess", {{"previous", true}, {"right", false}}, true, "query that chooses; 'right' is an upper bound")) {}

  void update(LayerStep& step) override {
    const std::int32_t* from = progress_.advance(step);
    covered_ = per_row(step, [&](std::int32_t r) { return covered(step.kv.len[r], tokens_of(budget_, step, r)); });
    const std::int32_t* coded = per_row(step, [&](std::int32_t r) { return covered(from[r], tokens_of(budget_, step, r)); });
    copy_ = rows_like(step);
    step.ops(LowBitCopy{.kv = step.kv, .code = code_, .coded = coded, .covered = covered_, .out = copy_});
    if (!all_decode(step.seqs)) last_.keep(step);
  }

  Selection select(LayerStep& step) override {
    const std::int64_t* first = prefix_sums(step, [&](std::int32_t r) { return covered_[r]; });
    const std::int32_t* keep = per_row(step, [&](std::int32_t r) { return brought(step.kv.len[r], tokens_of(budget_, step, r)); });
    selection_ = {};
    if (keeps_all(step, first, keep)) {
      last_.keep(step);
      return selection_;
    }
    const UnitLists lists = best_units(step, step.kv.first, judge(step), keep);
    last_.keep(step);
    selection_ = expand(step, {.lists = lists, .tail = covered_});
    traffic_.track(step, lists, lists_of(selection_), 2LL * step.kv.head_dim * step.kv.kv_bytes);
    return selection_;
  }

  // Fetched during the step before (abstract).
  [[nodiscard]] FetchBeside fetches_beside() const override { return FetchBeside::kLayerBefore; }

  [[nodiscard]] bool adds_segments() const override { return true; }
  void add_segments(LayerStep& step, std::vector<Segment>& segments) override {
    if (selection_.index_first == nullptr) return;
    const std::int32_t n = step.kv.num_rows;
    CopyUnits others{.num_rows = n, .lists = lists_of(selection_), .kind = CopyUnits::Kind::kOthers};
    others.first =
        prefix_sums(step, [&](std::int32_t r) { return step.kv.len[r] - (selection_.index_first[r + 1] - selection_.index_first[r]); });
    others.out = step.ops.ints(others.first[n]);
    step.ops(others);
    Segment segment{.kv = copy_, .index_first = others.first, .index = others.out};
    // Codes are read in whole groups.
    segment.read_bytes = sum_rows(step.kv, [&](std::int32_t r) { return code_.bytes(covered_[r], step.kv.head_dim); });
    segments.push_back(segment);
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, const KvRows& kv, const TierBytes& held) const override {
    std::int64_t on_gpu = 0, codes = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int32_t budget = budget_.of(kv.len[r]), copied = covered(kv.len[r], budget);
      on_gpu += kv.len[r] - copied + brought(kv.len[r], budget);
      codes += code_.bytes(copied, model.head_dim);
    }
    return keep_on_gpu(held, on_gpu, kv.total()).with_gpu(codes);
  }

 private:
  [[nodiscard]] std::int32_t covered(std::int32_t len, std::int32_t budget) const {
    const std::int32_t newest = budget > 0 ? std::clamp(budget / 2, 1, residual_) : residual_;
    return std::max(0, len - newest) / code_.group * code_.group;
  }

  // Less the newest tokens, not yet a whole group.
  [[nodiscard]] std::int32_t brought(std::int32_t len, std::int32_t budget) const {
    const std::int32_t copied = covered(len, budget);
    return std::min(copied, budget > 0 ? std::max(1, budget - (len - copied)) : top_);
  }

  // One page each.
  static KvRows rows_like(LayerStep& step) {
    KvRows rows = step.kv;
    const std::int32_t n = rows.num_rows;
    rows.page_tokens = n == 0 ? 1 : std::max(1, *std::max_element(rows.len, rows.len + n));
    rows.page_begin = per_row(step, [](std::int32_t r) { return r; });
    rows.page = rows.page_begin;
    rows.pool_tokens = static_cast<std::int64_t>(n) * rows.page_tokens;
    rows.k = step.ops.floats(rows.pool_tokens * rows.head_dim);
    rows.v = step.ops.floats(rows.pool_tokens * rows.head_dim);
    rows.position = step.ops.ints(rows.pool_tokens);
    rows.words = nullptr;
    rows.num_words = 0;
    return rows;
  }

  // Full-precision tokens are masked.
  float* judge(LayerStep& step) {
    std::vector<Queries> guess(step.in.step.begin(), step.in.step.end());
    if (looks_ahead_) {
      const auto before = last_.before(step);
      guess.assign(before.begin(), before.end());
    }
    float* scores = step.ops.floats(step.kv.total());
    step.ops.zero(scores, step.kv.total());
    const AttentionStats stats{.kv = copy_, .queries = guess.data(), .group = AttentionStats::Group::kSum, .sum = scores};
    step.ops(LowBitAttention{.stats = stats, .code = code_, .covered = covered_});
    const std::int32_t* head = per_row(step, [](std::int32_t) { return 0; });
    mask_ends(step, step.kv.first, head, covered_, scores);
    return scores;
  }

  std::int32_t top_, residual_;
  LowBitCode code_;
  bool looks_ahead_;
  RowProgress progress_{*this};
  LastQueries last_{*this};
  // Valid within a step, from update() on.
  KvRows copy_;
  const std::int32_t* covered_ = nullptr;
  Selection selection_;
};

KVLAB_REGISTER(Selector, SpeCache, "spe_cache",
               "a copy in few bits on the GPU; what a guessed next token attends to is brought in full precision from the host",
               "SpeCache: Jie et al. 2025, arXiv:2503.16163, section 3");

}  // namespace

}  // namespace kvlab
