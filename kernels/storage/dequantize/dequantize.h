#pragma once

#include <cstdint>
#include <span>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"
#include "kernels/storage/quantize/group_codec.h"

namespace kvlab {

class StoredArrays;
struct RowList;

// Decodes the result of Quantize (same list, codec and scales) and replaces, subtracts from (quantization error) or adds to the listed
// vectors.
struct Dequantize {
  enum class Mode : std::uint8_t { kWrite, kSubtract, kAdd };
  ListedTokens tokens;
  GroupCodec codec;
  const float* channel_scale = nullptr;     // [*, head_dim]
  const std::int32_t* scale_row = nullptr;  // [num_rows]; null: no scaling
  const std::uint8_t* packed = nullptr;
  Mode mode = Mode::kWrite;
};
OpCall call(const Dequantize&);
void run_cpu(const Dequantize&);
// On a GPU scale_row is in CPU memory.
void run_cuda(const Dequantize&, CudaContext&);

void stored_arrays(Dequantize&, StoredArrays&);
bool goes_on(const Dequantize&, const Dequantize& later, std::span<const RowList> lists);

}  // namespace kvlab
