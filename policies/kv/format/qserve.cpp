#include "kernels/storage/channel_divisors_op.h"
#include "kernels/storage/channel_stats_op.h"
#include "policies/kv/format/grouped.h"

namespace kvlab {

namespace {

// K's channels are divided by lambda, folded into q for free (QServe's SmoothAttention). Calibrated on each complete prompt's keys; offline
// in the papers.
class Smoothed : public Grouped {
 public:
  Smoothed(const SideBits& bits, const GroupedSide& side, float exponent, std::int32_t outliers)
      : Grouped({side, bits}), exponent_(exponent), outliers_(outliers) {}

 protected:
  ChannelScales key_scales(LayerStep& step) override {
    float* const lines = table_.lines(step, step.kv.head_dim);
    if (const std::int32_t* const completed = prompt_rows(step); completed != nullptr) {
      step.ops(ChannelStats{.kv = step.kv, .line = completed, .out = lines});
      step.ops(ChannelDivisors{step.kv.num_rows, step.kv.head_dim, completed, ChannelDivisors::Kind::kSmooth, lines, exponent_, true,
                               outliers_});
    }
    return {lines, state_rows(step)};
  }
  // Pair factors fold into weights; single-channel factors after RoPE are applied to q, in fp16.
  [[nodiscard]] std::int64_t scale_bytes(const ModelShape& m) const override { return outliers_ > 0 ? 2LL * m.head_dim : 0; }

 private:
  float exponent_;
  std::int32_t outliers_;
  RowTable table_{*this, 1.0F};
};

SideBits bits_of(Params& p) { return read_side_bits(p, 4, 2, 8); }

class Qserve final : public Smoothed {
 public:
  explicit Qserve(Params& p)
      : Smoothed(bits_of(p), {}, static_cast<float>(p.optional<double>("exponent", 0.5, 0, 1, "of the channels' largest |K|")), 0) {}
};

class Fireq final : public Smoothed {
 public:
  explicit Fireq(Params& p)
      : Smoothed(bits_of(p), symmetric(), 0.5F,
                 p.optional<std::int32_t>("outlier_channels", 8, 0, 1024, "channels of K scaled on their own after RoPE")) {}

 private:
  static GroupedSide symmetric() {
    GroupedSide side;
    side.codec.symmetric = true;
    return side;
  }
};

KVLAB_REGISTER(Format, Qserve, "qserve", "K smoothed by one factor per RoPE pair, K and V asymmetric 4 bits per token",
               "QServe: Lin et al. 2024, arXiv:2405.04532, section 4.2");
KVLAB_REGISTER(Format, Fireq, "fireq", "K smoothed by RoPE pair, then by outlier channel; K and V symmetric 4 bits per token",
               "FireQ: Baek et al. 2025, arXiv:2505.20839");

}  // namespace

}  // namespace kvlab
