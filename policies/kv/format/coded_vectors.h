#pragma once

#include <memory>
#include <vector>

#include "kernels/storage/vector_code/vector_code.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/format.h"

namespace kvlab {

// Rotates channel pairs (c, c + d / 2) of x [d] by direction * position * frequency; 1 applies RoPE, -1 undoes it.
std::vector<float> turned_vector(const float* x, std::int32_t d, const VectorCode::Place& place, float direction);

class CodedVectors : public Format {
 public:
  struct Codes {
    std::shared_ptr<const VectorCode> k, v;  // null: not encoded
  };
  // exact_sinks: first tokens of a complete prompt also kept in fp16.
  CodedVectors(Codes codes, DueRule rule, std::int32_t exact_sinks = 0)
      : codes_(std::move(codes)), exact_sinks_(exact_sinks), due_(*this, rule) {}

  [[nodiscard]] Needs needs() const override { return {.turns = keys_turn(), .cpu_only = "has a code without a CUDA kernel"}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void store(LayerStep& step) override;
  // Counts decoded tokens like the prompt's.
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& model, std::int32_t layer, std::int32_t tokens) const override;

 protected:
  // Codes of K depend on rotations (VectorCode::Place::frequencies).
  [[nodiscard]] virtual bool keys_turn() const { return false; }
  [[nodiscard]] virtual const std::shared_ptr<const VectorCode>& code(std::int32_t /*layer*/, bool values) const {
    return values ? codes_.v : codes_.k;
  }

 private:
  void encode(LayerStep& step, const ListedTokens& tokens, const float* frequencies);

  Codes codes_;
  std::int32_t exact_sinks_;
  DueTokens due_;
  RowTable k_parameters_{*this, 0.0F}, v_parameters_{*this, 0.0F};
};

}  // namespace kvlab
