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

}  // namespace

}  // namespace kvlab
