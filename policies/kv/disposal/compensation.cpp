#include <algorithm>
#include <cmath>

#include "kernels/storage/channel_stats_op.h"
#include "policies/kv/disposal/merging.h"
#include "policies/kv/format/due_tokens.h"

namespace kvlab {

namespace {

// Mean key (after RoPE) and value of dropped tokens, with weight n exp(q k / sqrt(d)) in the softmax.
class Compensation final : public CountingDisposal {
 public:
  explicit Compensation(Params& p) : CountingDisposal(p) {}

  void let_go(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = count_dropped(step, kept);
    step.ops(ChannelStats{.kv = rows.kv,
                          .kind = ChannelStats::Kind::kRunningMean,
                          .listed = {rows.kv, rows.dropped_first, rows.dropped},
                          .line = state_rows(step),
                          .out = k_mean_.lines(step, step.kv.head_dim),
                          .before = per_row(step, [&](std::int32_t r) { return dropped_before(step, r); }),
                          .values_out = v_mean_.lines(step, step.kv.head_dim)});
  }

  [[nodiscard]] bool adds_segments() const override { return true; }
  void add_segments(LayerStep& step, std::vector<Segment>& segments) override {
    const auto rows = static_cast<std::size_t>(step.kv.num_rows);
    len_.assign(rows, 0), page_begin_.assign(rows, 0), page_.assign(rows, 0), first_.assign(rows + 1, 0), log_weight_.assign(rows, 0.0F);
    const std::int32_t* const line = state_rows(step);
    std::int32_t most = -1;
    for (std::size_t r = 0; r < rows; ++r) {
      const std::int32_t count = dropped_before(step, static_cast<std::int32_t>(r));
      len_[r] = count > 0 ? 1 : 0;
      page_begin_[r] = static_cast<std::int32_t>(r);
      page_[r] = line[r];
      most = std::max(most, line[r]);
      first_[r + 1] = first_[r] + len_[r];
      if (count > 0) log_weight_[r] = std::log(static_cast<float>(count));
    }
    if (first_[rows] == 0) return;
    if (step.ops.computes()) {
      position_.settle_in(step.memory());
      position_.resize(std::max<std::int64_t>(position_.size(), most + 1), 0);  // seen by every query
    }
    Segment s;
    s.kv = step.kv;
    s.kv.len = len_.data(), s.kv.first = first_.data(), s.kv.page_begin = page_begin_.data(), s.kv.page = page_.data();
    s.kv.page_tokens = 1, s.kv.pool_tokens = most + 1;
    s.kv.k = k_mean_.lines(step, step.kv.head_dim), s.kv.v = v_mean_.lines(step, step.kv.head_dim);
    s.kv.type = ElementType::kF32;
    s.kv.position = position_.data(), s.kv.words = nullptr, s.kv.num_words = 0;
    s.log_weight = log_weight_.data();
    segments.push_back(s);
  }

 private:
  [[nodiscard]] TierBytes bytes_of(const ModelShape& model, std::int32_t, const Format&, std::int32_t count) const override {
    return {.gpu = count > 0 ? 2LL * model.head_dim * model.kv_bytes + 4 : 0};
  }

  RowTable k_mean_{*this, 0.0F}, v_mean_{*this, 0.0F};
  std::vector<std::int32_t> len_, page_begin_, page_;
  TensorArray<std::int32_t> position_;
  std::vector<std::int64_t> first_;
  std::vector<float> log_weight_;
};

KVLAB_REGISTER(Disposal, Compensation, "compensation", "one token per KV head represents the dropped ones: their mean, with their count",
               "RazorAttention: Tang et al. 2024, arXiv:2407.15891, eq. 3-4");

}  // namespace

}  // namespace kvlab
