#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/model/record.h"
#include "kernels/element.h"
#include "kernels/select/guess_queries/guess_queries.h"
#include "kernels/tensor_memory.h"

namespace kvlab {

class CacheModel {
 public:
  virtual ~CacheModel() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  // For keys and values.
  [[nodiscard]] virtual TensorMemory memory() const { return {}; }
  [[nodiscard]] virtual ElementType kv_type() const { return ElementType::kF32; }
  // W_o, float32 [hidden_dim, q_heads * head_dim] in memory().
  [[nodiscard]] virtual const float* output_weights(std::int32_t layer) const = 0;
  // None on a GPU.
  [[nodiscard]] virtual QueryWeights query_weights(std::int32_t /*layer*/) const { return {}; }
  // Null: no extra passes inside a step.
  [[nodiscard]] virtual const Transformer* transformer() const { return nullptr; }
};

}  // namespace kvlab
