#include "kernels/storage/channel_stats/channel_stats.h"
#include "policies/kv/format/grouped.h"

namespace kvlab {

namespace {

// K and V token by token, K with its channels brought to similar size first: they are divided by lambda, which is folded into q
// (QServe's SmoothAttention) and costs nothing at run time. The papers calibrate lambda offline; here it comes from the keys of the
// sequence's own prompt, so the prompt is encoded when it is complete.
class Smoothed : public Grouped {
 public:
  Smoothed(const GroupedSide& k, const GroupedSide& v, float exponent, std::int32_t outliers)
      : Grouped(k, v), exponent_(exponent), outliers_(outliers) {}

  void forget(std::int32_t index) override {
    Grouped::forget(index);
    table_.forget(index);
  }

 protected:
  Scales key_scales(LayerStep& step) override {
    float* const lines = table_.lines(step, step.kv.head_dim);
    if (const std::int32_t* const completed = prompt_rows(step); completed != nullptr) {
      ChannelStats largest;
      largest.kv = step.kv;
      largest.line = completed;
      largest.out = lines;
      step.ops(largest);
      step.ops(SmoothChannels{step.kv.num_rows, step.kv.head_dim, completed, exponent_, true, outliers_, lines});
    }
    return {lines, state_rows(step)};
  }
  // The pairs' factors disappear in the weights; those of single channels after RoPE are applied to q, one fp16 number each.
  [[nodiscard]] std::int64_t scale_bytes(const ModelShape& m) const override { return outliers_ > 0 ? 2LL * m.head_dim : 0; }

 private:
  float exponent_;
  std::int32_t outliers_;
  RowTable table_{1.0F};
};

GroupedSide side_of(Params& p, bool symmetric) {
  GroupedSide side;
  side.codec.symmetric = symmetric;
  side.codec.bits = p.optional<std::int32_t>("bits", 4, 2, 8, "of a code");
  return side;
}

class Qserve final : public Smoothed {
 public:
  explicit Qserve(Params& p) : Qserve(side_of(p, false), p.optional<double>("exponent", 0.5, 0, 1, "of the channels' largest |K|")) {}

 private:
  Qserve(const GroupedSide& side, double exponent) : Smoothed(side, side, static_cast<float>(exponent), 0) {}
};

class Fireq final : public Smoothed {
 public:
  explicit Fireq(Params& p)
      : Fireq(side_of(p, true), p.optional<std::int32_t>("outlier_channels", 8, 0, 1024, "channels of K scaled on their own after RoPE")) {}

 private:
  Fireq(const GroupedSide& side, std::int32_t outliers) : Smoothed(side, side, 0.5F, outliers) {}
};

KVLAB_REGISTER(Format, Qserve, "qserve", "K smoothed by one factor per RoPE pair, K and V asymmetric 4 bits per token",
               "QServe: Lin et al. 2024, arXiv:2405.04532, section 4.2");
KVLAB_REGISTER(Format, Fireq, "fireq", "K smoothed by RoPE pair, then by outlier channel; K and V symmetric 4 bits per token",
               "FireQ: Baek et al. 2025, arXiv:2505.20839");

}  // namespace

}  // namespace kvlab
