#include "policies/kv/format/grouped.h"

namespace kvlab {

namespace {

// K and V channel by channel, in groups of consecutive tokens; an incomplete group waits in the model's precision.
class PerChannel final : public Grouped {
 public:
  explicit PerChannel(Params& p) : PerChannel(side(p)) {}

 private:
  explicit PerChannel(const GroupedSide& side) : Grouped(side, side) {}
  static GroupedSide side(Params& p) {
    GroupedSide side;
    side.codec.axis = GroupCodec::Axis::kChannel;
    side.codec.bits = p.optional<std::int32_t>("bits", 4, 1, 8, "of a code");
    side.codec.group = p.optional<std::int32_t>("group_tokens", 64, 1, 1024, "tokens that share zero and scale in each channel");
    side.rule.residual_tokens = p.optional<std::int32_t>("residual_tokens", 0, 0, 1 << 16, "newest tokens in the model's precision");
    side.rule.block_tokens = side.codec.group;
    return side;
  }
};

KVLAB_REGISTER(Format, PerChannel, "per_channel", "K and V quantized channel by channel, in groups of tokens",
               "KIVI: Liu et al. 2024, arXiv:2402.02750, section 3 (table 2 compares both axes)");

}  // namespace

}  // namespace kvlab
