#include <algorithm>
#include <vector>

#include "kernels/score/mark_top_op.h"
#include "policies/kv/scorer/scorer_wrapper.h"

namespace kvlab {

namespace {

// Ours: equal spans, optionally the question as one; quotas proportional to length, at least 1. Protected tokens count towards their span;
// if they exceed its quota, other spans share the rest.
class Fair final : public ScorerWrapper {
 public:
  explicit Fair(Params& p)
      : ScorerWrapper(p, "window_attention", {.wrapper = "fair"}),
        span_(p.optional<std::int32_t>("span_tokens", 256, 1, 1 << 26, "tokens of a span")),
        question_(p.flag("question", false, "the question is a span of its own")),
        quota_frac_(p.optional<double>("quota_frac", 0.0, 0.0, 1.0,
                                       "share of each span kept, rounded down, at least 1; 0: its share of the budget")) {}

  [[nodiscard]] Needs needs() const override {
    Needs needs = inner().needs();
    needs.question |= question_;
    return needs;
  }

  [[nodiscard]] bool ranks_after_counts() const override { return true; }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    const KvRows& kv = step.kv;
    inner().refine(step, keep, scores);
    begins_.clear();
    quotas_.clear();
    std::int64_t *first = step.ops.host_longs(kv.num_sequences() + 1), *quota_first = step.ops.host_longs(kv.num_rows + 1);
    first[0] = quota_first[0] = 0;
    for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
      add_spans(step.seqs[static_cast<std::size_t>(s)]);
      first[s + 1] = static_cast<std::int64_t>(begins_.size());
      for (std::int32_t r = s * kv.kv_heads; r < (s + 1) * kv.kv_heads; ++r) {
        add_quotas(first[s], step.seqs[static_cast<std::size_t>(s)].end(), kv.len[r], keep[r]);
        quota_first[r + 1] = static_cast<std::int64_t>(quotas_.size());
      }
    }
    MarkTop best{kv.num_rows, kv.first, scores, quotas_.data(), scores, std::numeric_limits<float>::max()};
    best.by_span = true, best.counts_first = quota_first;
    best.kv = kv, best.span_first = first, best.span_begin = begins_.data();
    step.ops(best);
  }

 private:
  void add_spans(const SeqStep& seq) {
    const std::int32_t question = question_ && seq.question_begin > 0 && seq.question_begin < seq.end() ? seq.question_begin : seq.end();
    for (std::int32_t at = 0; at < std::max(question, 1); at += span_) begins_.push_back(at);
    if (question < seq.end()) begins_.push_back(question);
  }

  struct Span {
    std::int32_t tokens = 0, is_protected = 0;
    bool is_full = false;  // of protected tokens
  };
  std::vector<Span> spans_of(std::int64_t first, std::int32_t end, std::int32_t keep) const {
    const Protected p = protects();
    const std::int32_t sinks = std::min(p.sinks, end), recent = std::max(sinks, end - p.recent_of(keep));
    std::vector<Span> spans;
    for (auto j = static_cast<std::size_t>(first); j < begins_.size(); ++j) {
      const std::int32_t begin = begins_[j], next = j + 1 < begins_.size() ? begins_[j + 1] : end;
      spans.push_back({next - begin, std::max(0, std::min(next, sinks) - begin) + std::max(0, next - std::max(begin, recent)), false});
    }
    return spans;
  }

  void add_quotas(std::int64_t first, std::int32_t end, std::int32_t len, std::int32_t& keep) {
    const std::vector<Span> spans = spans_of(first, end, keep);
    if (quota_frac_ == 0) return share_budget(spans, end, keep);
    std::int32_t left = len;
    for (const Span& s : spans) {
      quotas_.push_back(std::min(left, std::max({1, static_cast<std::int32_t>(s.tokens * quota_frac_), s.is_protected})));
      left -= quotas_.back();
    }
    keep = len - left;  // fixed span shares make the budget
  }

  // Largest remainders; sums to the budget if it has a token per span.
  void share_budget(std::vector<Span> spans, std::int32_t length, std::int32_t left) {
    const auto share = [&](const Span& s) { return static_cast<double>(left) * s.tokens / std::max(1, length); };
    const auto overflows = [&](const Span& s) { return !s.is_full && s.is_protected > share(s); };
    for (auto s = spans.begin(); (s = std::find_if(spans.begin(), spans.end(), overflows)) != spans.end();) {
      s->is_full = true;
      left = std::max(0, left - s->is_protected), length -= s->tokens;
    }
    std::vector<double> shares;
    for (const Span& s : spans) shares.push_back(share(s));
    std::vector<std::pair<double, std::size_t>> remainders;
    for (std::size_t j = 0; j < spans.size(); ++j) {
      const std::int32_t quota =
          spans[j].is_full ? spans[j].is_protected : std::min(left, std::max(1, static_cast<std::int32_t>(shares[j])));
      if (!spans[j].is_full) left -= quota, remainders.emplace_back(quota - shares[j], quotas_.size());
      quotas_.push_back(quota);
    }
    std::sort(remainders.begin(), remainders.end());
    for (std::size_t j = 0; j < remainders.size() && left > 0; ++j, --left) ++quotas_[remainders[j].second];
  }

  std::int32_t span_;
  bool question_;
  double quota_frac_;
  std::vector<std::int32_t> begins_, quotas_;
};

KVLAB_REGISTER(Scorer, Fair, "fair", "another score, with a quota for every span of the prompt",
               "The Pitfalls of KV Cache Compression: Chen et al. 2025, arXiv:2510.00231");

}  // namespace

}  // namespace kvlab
