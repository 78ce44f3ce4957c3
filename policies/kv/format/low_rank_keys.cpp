#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "kernels/storage/low_rank/low_rank.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"

namespace kvlab {

namespace {

// ShadowKV's part on the GPU: K before RoPE, all KV heads together. V and decoded tokens are unchanged.
class LowRankKeys final : public Format {
 public:
  explicit LowRankKeys(Params& p)
      : rank_(p.optional<std::int32_t>("rank", 0, 0, 1 << 14, "of the keys of all KV heads together; 0: rank_frac says it")),
        rank_frac_(p.optional<double>("rank_frac", 0.15625, 0.001, 1, "rank as a share of kv_heads * head_dim channels")),
        rounds_(p.optional<std::int32_t>("rounds", 4, 1, 32, "of subspace iteration")),
        is_pre_rope_(p.choice("keys", {{"before_rope", true}, {"after_rope", false}}, true,
                              "which keys are factored; before RoPE they must be observed")) {}

  [[nodiscard]] Needs needs() const override { return {.pre_rope_keys = is_pre_rope_}; }
  [[nodiscard]] std::string refuses(const ModelShape& m) const override {
    const std::int32_t width = m.kv_heads * m.head_dim;
    if (rank(m) < width) return "";
    return fmt::format("rank {} of format 'low_rank_keys' saves nothing on keys of {} x {} = {} channels", rank(m), m.kv_heads, m.head_dim,
                       width);
  }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  [[nodiscard]] bool leaves_exact() const override { return true; }
  [[nodiscard]] bool stores_prompt_keys_alone() const override { return true; }
  [[nodiscard]] EqualHeads equal_heads() const override { return EqualHeads::kLeft; }

  // Exact keys are factored with the others, and also stay.
  void store(LayerStep& step) override {
    LowRankFactor factor;
    factor.tokens = due_.take(step, first_word());
    if (factor.tokens.total() == 0) return;
    factor.joint_heads = true;
    check_heads(factor);
    factor.rank = rank(step.model);
    factor.rounds = rounds_;
    factor.seed = step.seed + static_cast<std::uint64_t>(step.layer);
    factor.is_pre_rope = is_pre_rope_;
    factor.pre_rope = is_pre_rope_ ? step.in.pre_rope_keys.data() : nullptr;
    factor.left = reinterpret_cast<std::uint16_t*>(step.ops.ints((left_numbers(factor) + 1) / 2));
    factor.right = reinterpret_cast<std::uint16_t*>(step.ops.ints((right_numbers(factor) + 1) / 2));
    step.ops(factor);
    factor.unpacks = true, factor.exact_first = step.exact.index_first, factor.exact = step.exact.index;
    step.ops(factor);
  }

  // V, this head's share of the left factor (rounded up) and its columns of the right one. Decoded tokens are counted like the prompt's.
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t, std::int32_t tokens) const override {
    if (tokens == 0) return 0;
    const std::int64_t left = 2LL * tokens * rank(m);
    return static_cast<std::int64_t>(tokens) * m.head_dim * m.kv_bytes + ceil_div(left, m.kv_heads) + 2LL * rank(m) * m.head_dim;
  }

 private:
  [[nodiscard]] std::int32_t rank(const ModelShape& m) const {
    return rank_ > 0 ? rank_ : std::max(1, static_cast<std::int32_t>(std::lround(rank_frac_ * m.kv_heads * m.head_dim)));
  }

  std::int32_t rank_;
  double rank_frac_;
  std::int32_t rounds_;
  bool is_pre_rope_;
  DueTokens due_{*this, {0, 1, false, true}};
};

KVLAB_REGISTER(Format, LowRankKeys, "low_rank_keys", "the prompt's K of a layer as a product of two thin matrices",
               "ShadowKV: Sun et al. 2024, arXiv:2410.21465, section 4.1");

}  // namespace

}  // namespace kvlab
