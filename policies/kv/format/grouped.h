#pragma once

#include <cstdint>

#include "kernels/storage/quantize/group_codec.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/part.h"

namespace kvlab {

// How one side, K or V, is quantized.
struct GroupedSide {
  GroupCodec codec;
  DueRule rule;
  // Bytes of a row that lost no token since it was encoded: packed codes and the residual in the model's precision. Tokens that share a
  // group were encoded block by block.
  [[nodiscard]] std::int64_t bytes(const ModelShape& model, std::int32_t tokens) const;
  // As KvPart::affine_lengths(): single tokens that join a group of several have no line.
  [[nodiscard]] Lengths lengths(std::int32_t len) const {
    return codec.axis == GroupCodec::Axis::kChannel && rule.block_tokens == 1 ? Lengths::only(len) : rule.lengths(len);
  }
};

// K and V as groups of codes with fp16 zero and scale. Methods differ in the direction of the groups, the number of new tokens that wait,
// and a scaling of channels beforehand.
class Grouped : public Format {
 public:
  Grouped(const GroupedSide& k, const GroupedSide& v) : k_(k), v_(v), k_due_(k.rule, 1), v_due_(v.rule, 2) {}

  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void forget(std::int32_t index) override {
    k_due_.forget(index);
    v_due_.forget(index);
  }
  void store(LayerStep& step) override;
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return k_.lengths(len).within(v_.lengths(len)); }
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& model, std::int32_t layer, std::int32_t tokens) const override;

 protected:
  // Divisors of the channels, lines [*, head_dim] by state_rows(); brought up to date for sequences that complete their prompt in
  // this step. Null: no scaling.
  struct Scales {
    const float* lines = nullptr;
    const std::int32_t* row = nullptr;
  };
  virtual Scales key_scales(LayerStep&) { return {}; }
  // Bytes of the scales of a row.
  [[nodiscard]] virtual std::int64_t scale_bytes(const ModelShape&) const { return 0; }

 private:
  void encode(LayerStep& step, const ListedTokens& tokens, const GroupCodec& codec, const Scales& scales);

  GroupedSide k_, v_;
  DueTokens k_due_, v_due_;
};

}  // namespace kvlab
