#include "policies/kv/format/grouped.h"
#include "policies/kv/format/side_bits.h"

namespace kvlab {

namespace {

struct KiviParameters {
  SideBits bits;
  std::int32_t group_tokens, residual_tokens;
  explicit KiviParameters(Params& p)
      : bits(read_side_bits(p, 2, 1, 8)),
        group_tokens(p.optional<std::int32_t>("group_tokens", 32, 1, 1024,
                                              "tokens of one channel of K, or channels of one token of V, that share zero and scale")),
        residual_tokens(p.optional<std::int32_t>("residual_tokens", 128, 1, 1 << 16,
                                                 "newest tokens in the model's precision: V always, K up to this many")) {
    if (residual_tokens % group_tokens != 0) p.fail_at("residual_tokens", "'residual_tokens' must be a multiple of group_tokens");
  }
};

// K is encoded in blocks of residual_tokens, V token by token. The prompt's attention reads unencoded K and V.
class Kivi final : public Grouped {
 public:
  explicit Kivi(Params& p) : Kivi(KiviParameters(p)) {}

 private:
  explicit Kivi(const KiviParameters& p)
      : Grouped({{GroupCodec::Axis::kChannel, p.bits.key, p.group_tokens, false}, {0, p.residual_tokens, false}},
                {{GroupCodec::Axis::kToken, p.bits.value, p.group_tokens, false}, {p.residual_tokens, 1, false}}) {}
};

KVLAB_REGISTER(Format, Kivi, "kivi", "K quantized per channel, V per token, the newest tokens in full precision",
               "KIVI: Liu et al. 2024, arXiv:2402.02750, algorithm 1");

}  // namespace

}  // namespace kvlab
