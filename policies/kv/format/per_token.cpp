#include "kernels/storage/channel_divisors_op.h"
#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/low_rank/low_rank.h"
#include "kernels/storage/outliers_op.h"
#include "kernels/storage/quantize/quantize.h"
#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"
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

// X ~ quantized + low rank + sparse, rank r per head. New tokens wait in a buffer.
class Gear final : public Format {
 public:
  explicit Gear(Params& p)
      : bits_(read_side_bits(p, 4, 1, 8)),
        group_(p.optional<std::int32_t>("group", 64, 0, 4096,
                                        "tokens of one channel of K, or channels of one token of V, that share zero and scale; 0: all")),
        sparse_frac_(p.optional<double>("outliers_frac", 0.02, 0, 0.5, "share of numbers stored apart in fp16")),
        prompt_rank_(p.optional<std::int32_t>("prompt_rank", 4, 1, 256, "of the prompt's error")),
        buffer_rank_(p.optional<std::int32_t>("buffer_rank", 2, 1, 256, "of a buffer's error")),
        due_(*this, {0, p.optional<std::int32_t>("buffer_tokens", 20, 1, 4096, "new tokens that wait to be encoded together")}) {}

  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void store(LayerStep& step) override {
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    const bool of_prompt = prompt_rows(step) != nullptr;
    encode(step, keys, of_prompt ? prompt_rank_ : buffer_rank_);
    encode(step, keys.of_values(), of_prompt ? prompt_rank_ : buffer_rank_);
  }

  // Counts encoded tokens as the prompt's. Decode buffers have their own right factors and shorter groups, unknown from lengths.
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t, std::int32_t tokens) const override {
    const std::int64_t n = due_.rule().encoded(tokens), d = m.head_dim;
    if (n == 0) return 2LL * tokens * d * m.kv_bytes;
    const std::int64_t factors = 2LL * prompt_rank_ * (n + d);
    return packed_bytes(codec(false), n, d) + packed_bytes(codec(true), n, d) + 2 * factors + outlier_bytes(d, n, sparse_frac_) +
           outlier_bytes(n, d, sparse_frac_) + 2 * (tokens - n) * d * m.kv_bytes;
  }

 private:
  [[nodiscard]] GroupCodec codec(bool values) const {
    return {values ? GroupCodec::Axis::kToken : GroupCodec::Axis::kChannel, values ? bits_.value : bits_.key, group_, false};
  }

  void encode(LayerStep& step, const ListedTokens& tokens, std::int32_t rank) {
    Outliers outliers;
    outliers.tokens = tokens;
    outliers.per_channel = !tokens.values;
    outliers.share = sparse_frac_;
    const std::int64_t numbers = outlier_numbers(outliers);
    outliers.value = reinterpret_cast<std::uint16_t*>(step.ops.ints((numbers + 1) / 2));
    if (has_wide_places(outliers))
      outliers.place.wide = step.ops.ints(numbers);
    else
      outliers.place.narrow = reinterpret_cast<std::uint16_t*>(step.ops.ints((numbers + 1) / 2));
    step.ops(outliers);
    const GroupCodec codec = this->codec(tokens.values);
    auto* const packed = reinterpret_cast<std::uint8_t*>(step.ops.ints((packed_bytes(tokens, codec) + 3) / 4));
    step.ops(Quantize{tokens, codec, nullptr, nullptr, packed});
    step.ops(Quantize{tokens, codec, nullptr, nullptr, packed, Quantize::Mode::kSubtract});
    LowRankFactor error{.tokens = tokens, .rank = rank, .seed = step.seed + static_cast<std::uint64_t>(step.layer)};
    error.left = reinterpret_cast<std::uint16_t*>(step.ops.ints((left_numbers(error) + 1) / 2));
    error.right = reinterpret_cast<std::uint16_t*>(step.ops.ints((right_numbers(error) + 1) / 2));
    step.ops(error);
    error.unpacks = true;
    step.decode(error);
    step.decode(Quantize{tokens, codec, nullptr, nullptr, packed, Quantize::Mode::kAdd});
    outliers.unpacks = true;
    step.decode(outliers);
  }

  SideBits bits_;
  std::int32_t group_;
  double sparse_frac_;
  std::int32_t prompt_rank_, buffer_rank_;
  DueTokens due_;
};

KVLAB_REGISTER(Format, Gear, "gear", "quantized K and V, with a low-rank product for the error and outliers apart",
               "GEAR: Kang et al. 2024, arXiv:2403.05527, algorithm 1");

}  // namespace

}  // namespace kvlab
