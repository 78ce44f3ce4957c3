#pragma once

#include <cstdint>

#include "kernels/storage/quantize/quantize.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"
#include "policies/kv/format/side_bits.h"

namespace kvlab {

// For K or V.
struct GroupedSide {
  GroupCodec codec;
  DueRule rule;
  // A row without evictions: packed codes and the unencoded residual. Groups of several tokens are per encoded block.
  [[nodiscard]] std::int64_t bytes(const ModelShape& model, std::int32_t tokens) const;
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
void encode_groups(LayerStep& step, const ListedTokens& tokens, const GroupCodec& codec, const ChannelScales& scales);

// Groups of codes with fp16 zero and scale.
class Grouped : public Format {
 public:
  explicit Grouped(const GroupedSides& sides) : k_(sides.k), v_(sides.v), k_due_(*this, k_.rule, 1), v_due_(*this, v_.rule, 2) {}

  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void store(LayerStep& step) override;
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return k_.lengths(len).within(v_.lengths(len)); }
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& model, std::int32_t layer, std::int32_t tokens) const override;

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
