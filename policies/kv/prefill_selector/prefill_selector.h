#pragma once

#include <cstdint>

#include "base/config/registration.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/tensor_memory.h"
#include "policies/kv/part.h"

namespace kvlab {

struct PatternTable;

// A part of an uncut prompt in one layer. Data pointers are null on shapes.
struct PromptChunk {
  Ops& ops;
  const ModelShape& model;
  std::int32_t layer = 0;
  SeqStep seq;
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [end, kv_heads, head_dim]
  const float* v = nullptr;  // [end, kv_heads, head_dim]
  float* out = nullptr;      // [new_tokens, q_heads, head_dim]
  float* log_sum = nullptr;  // [new_tokens, q_heads] over the chosen keys; null: not wanted
  std::int64_t window = 0;   // of the layer; 0: none
  TensorMemory memory = {};

  [[nodiscard]] PromptBlocks blocks(std::int32_t block) const {
    return {q, k, seq.new_tokens, seq.seen_tokens, model.q_heads, model.kv_heads, model.head_dim, model.kv_bytes, model.kv_bytes, block};
  }
};

// All K and V stay.
class PrefillSelector : public KvPart {
 public:
  // True: every query attends to all tokens up to its own; attend() is not called.
  [[nodiscard]] virtual bool is_dense(std::int32_t /*layer*/) const { return false; }
  [[nodiscard]] virtual bool selects_all() const { return false; }
  // Query-key pairs computed over all query heads, without estimates.
  virtual std::int64_t attend(const PromptChunk& chunk) = 0;
  // Takes head patterns of `weights: FILE.json`, which do not replace its own.
  [[nodiscard]] virtual bool takes_patterns() const { return false; }
  virtual void set_patterns(const PatternTable&) {}

  [[nodiscard]] std::vector<Conflict> conflicts() const override;
};

using PrefillSelectorRegistry = Registry<PrefillSelector>;

}  // namespace kvlab
