#include "kernels/storage/channel_divisors_op.h"
#include "kernels/storage/channel_stats_op.h"
#include "policies/kv/format/grouped.h"

namespace kvlab {

namespace {

class PerToken final : public Grouped {
 public:
  explicit PerToken(Params& p) : Grouped(sides(p)) {}

 private:
  static GroupedSides sides(Params& p) {
    GroupedSide side;
    side.codec.group = p.optional<std::int32_t>("group_channels", 0, 0, 1024, "channels that share zero and scale; 0: the whole head");
    side.rule.residual_tokens = p.optional<std::int32_t>("residual_tokens", 0, 0, 1 << 16, "newest tokens in the model's precision");
    side.rule.inside_prompt = true;
    return {side, read_side_bits(p, 4, 1, 8)};
  }
};

KVLAB_REGISTER(Format, PerToken, "per_token", "K and V quantized token by token, in groups of channels",
               "FlexGen: Sheng et al. 2023, arXiv:2303.06865, section 4; KV4 of QServe: Lin et al. 2024, arXiv:2405.04532");

// Incomplete groups are not encoded.
class PerChannel final : public Grouped {
 public:
  explicit PerChannel(Params& p) : Grouped(sides(p)) {}

 private:
  static GroupedSides sides(Params& p) {
    GroupedSide side;
    side.codec.axis = GroupCodec::Axis::kChannel;
    side.codec.group = p.optional<std::int32_t>("group_tokens", 64, 1, 1024, "tokens that share zero and scale in each channel");
    side.rule.residual_tokens = p.optional<std::int32_t>("residual_tokens", 0, 0, 1 << 16, "newest tokens in the model's precision");
    side.rule.block_tokens = side.codec.group;
    return {side, read_side_bits(p, 4, 1, 8)};
  }
};

KVLAB_REGISTER(Format, PerChannel, "per_channel", "K and V quantized channel by channel, in groups of tokens",
               "KIVI: Liu et al. 2024, arXiv:2402.02750, section 3 (table 2 compares both axes)");

// K is encoded in blocks of residual_tokens, V token by token. The prompt's attention reads unencoded K and V.
class Kivi final : public Grouped {
 public:
  explicit Kivi(Params& p) : Grouped(sides(p)) {}

 private:
  static GroupedSides sides(Params& p) {
    const SideBits bits = read_side_bits(p, 2, 1, 8);
    const auto group = p.optional<std::int32_t>("group_tokens", 32, 1, 1024,
                                                "tokens of one channel of K, or channels of one token of V, that share zero and scale");
    const auto residual =
        p.optional<std::int32_t>("residual_tokens", 128, 1, 1 << 16, "newest tokens in the model's precision: V always, K up to this many");
    if (residual % group != 0) p.fail_at("residual_tokens", "'residual_tokens' must be a multiple of group_tokens");
    return {GroupedSide{{GroupCodec::Axis::kChannel, bits.key, group, false}, {0, residual, false}},
            GroupedSide{{GroupCodec::Axis::kToken, bits.value, group, false}, {residual, 1, false}}};
  }
};

KVLAB_REGISTER(Format, Kivi, "kivi", "K quantized per channel, V per token, the newest tokens in full precision",
               "KIVI: Liu et al. 2024, arXiv:2402.02750, algorithm 1");

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
