#pragma once

#include <cstdint>

#include "kernels/storage/quantize/quantize.h"
#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"

namespace kvlab {

// For K or V.
struct GroupedSide {
  GroupCodec codec;
  DueRule rule;
  // A row without evictions: packed codes and the unencoded residual. Groups of several tokens are per encoded block.
  [[nodiscard]] std::int64_t bytes(const ModelShape& m, std::int32_t tokens) const {
    const std::int32_t encoded = rule.encoded(tokens);
    return packed_bytes(codec, encoded, m.head_dim) + static_cast<std::int64_t>(tokens - encoded) * m.head_dim * m.kv_bytes;
  }
  // Not affine if single tokens join groups of several.
  [[nodiscard]] Lengths lengths(std::int32_t len) const {
    return codec.axis == GroupCodec::Axis::kChannel && rule.block_tokens == 1 ? Lengths::only(len) : rule.lengths(len);
  }
};

struct GroupedSides {
  GroupedSide k, v;
  // Alike but for the bits.
  GroupedSides(const GroupedSide& side, const SideBits& bits) : k(side), v(side) { k.codec.bits = bits.key, v.codec.bits = bits.value; }
  GroupedSides(const GroupedSide& of_k, const GroupedSide& of_v) : k(of_k), v(of_v) {}
};

// Channel divisors [*, head_dim]. Null: no scaling.
struct ChannelScales {
  const float* lines = nullptr;
  const std::int32_t* row = nullptr;
};
inline void encode_groups(LayerStep& step, const ListedTokens& tokens, const GroupCodec& codec, const ChannelScales& scales) {
  if (tokens.total() == 0) return;
  auto* const packed = reinterpret_cast<std::uint8_t*>(step.ops.ints((packed_bytes(tokens, codec) + 3) / 4));
  step.ops(Quantize{tokens, codec, scales.lines, scales.row, packed});
  step.decode(Quantize{tokens, codec, scales.lines, scales.row, packed, Quantize::Mode::kWrite});
}

// Groups of codes with fp16 zero and scale.
class Grouped : public Format {
 public:
  explicit Grouped(const GroupedSides& sides) : k_(sides.k), v_(sides.v), k_due_(*this, k_.rule, 1), v_due_(*this, v_.rule, 2) {}

  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void store(LayerStep& step) override {
    const ChannelScales scales = key_scales(step);
    const ListedTokens keys = k_due_.take(step, first_word());
    encode_groups(step, keys, k_.codec, scales);
    encode_groups(step, v_due_.take(step, first_word()).of_values(), v_.codec, {});
  }
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return k_.lengths(len).within(v_.lengths(len)); }
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t, std::int32_t tokens) const override {
    return k_.bytes(m, tokens) + v_.bytes(m, tokens) + (tokens > 0 ? scale_bytes(m) : 0);
  }

 protected:
  // By state_rows(), updated for prompts that this step completes.
  virtual ChannelScales key_scales(LayerStep&) { return {}; }
  // Per row.
  [[nodiscard]] virtual std::int64_t scale_bytes(const ModelShape&) const { return 0; }

 private:
  GroupedSide k_, v_;
  DueTokens k_due_, v_due_;
};

}  // namespace kvlab
