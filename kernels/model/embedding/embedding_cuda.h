#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"
#include "kernels/model/embedding/embedding.h"

namespace kvlab {

// Ids must be in [0, vocabulary).
struct DeviceEmbedding {
  const std::int32_t* ids = nullptr;  // [tokens]
  const void* table = nullptr;        // [vocabulary, width]
  void* out = nullptr;                // [tokens, width]
  std::int64_t tokens = 0, width = 0;
  ElementType type = ElementType::kBf16;
};

constexpr EmbeddingShape shape(const DeviceEmbedding& a) { return {a.tokens, a.width, element_bytes(a.type)}; }
void run_cuda(const DeviceEmbedding& a, CudaContext& cuda);

}  // namespace kvlab
