#include "policies/kv/format/grouped.h"

namespace kvlab {

namespace {

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

}  // namespace

}  // namespace kvlab
