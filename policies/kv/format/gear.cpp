#include "kernels/storage/low_rank/low_rank.h"
#include "kernels/storage/outliers_op.h"
#include "kernels/storage/quantize/quantize.h"
#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"

namespace kvlab {

namespace {

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
