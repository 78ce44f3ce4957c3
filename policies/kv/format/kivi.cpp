#include "policies/kv/format/grouped.h"

namespace kvlab {

namespace {

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

}  // namespace

}  // namespace kvlab
