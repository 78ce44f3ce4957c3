#pragma once

#include <memory>
#include <vector>

#include "kernels/storage/vector_code/vector_code.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/part.h"

namespace kvlab {

// x [d] with pairs of channels (c, c + d / 2) turned by direction * position * frequency of the place: 1 applies RoPE, -1 undoes it.
std::vector<float> turned_vector(const float* x, std::int32_t d, const VectorCode::Place& place, float direction);

// A format of two codes of single vectors, of K and of V. A derived class provides the codes and their options.
class CodedVectors : public Format {
 public:
  struct Codes {
    std::shared_ptr<const VectorCode> k, v;  // null: the side is not encoded
  };
  // `exact_sinks`: the first tokens of each row when its prompt is complete stay in fp16 in addition to their codes.
  CodedVectors(Codes codes, DueRule rule, std::int32_t exact_sinks = 0) : codes_(std::move(codes)), exact_sinks_(exact_sinks), due_(rule) {}

  [[nodiscard]] Needs needs() const override;
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  void forget(std::int32_t index) override;
  void store(LayerStep& step) override;
  // Tokens that decode adds are counted like the prompt's.
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& model, std::int32_t layer, std::int32_t tokens) const override;

 protected:
  // True: the codes of K take a token's rotation into account (VectorCode::Place::frequencies).
  [[nodiscard]] virtual bool keys_turn() const { return false; }
  // The layer's code of K or V; null: the side is not encoded.
  [[nodiscard]] virtual const std::shared_ptr<const VectorCode>& code(std::int32_t /*layer*/, bool values) const {
    return values ? codes_.v : codes_.k;
  }

 private:
  void encode(LayerStep& step, const ListedTokens& tokens, const float* frequencies);

  Codes codes_;
  std::int32_t exact_sinks_;
  DueTokens due_;
  RowTable k_parameters_{0.0F}, v_parameters_{0.0F};
};

}  // namespace kvlab
