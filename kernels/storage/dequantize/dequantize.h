#pragma once

#include <cstdint>
#include <span>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"
#include "kernels/storage/quantize/group_codec.h"

namespace kvlab {

class StoredArrays;
struct RowList;

// Decodes what Quantize wrote with the same list, codec and scales, and replaces the listed vectors, subtracts from them (which leaves the
// quantization error) or adds to them.
struct Dequantize {
  enum class Mode : std::uint8_t { kWrite, kSubtract, kAdd };
  ListedTokens tokens;
  GroupCodec codec;
  const float* channel_scale = nullptr;     // [*, head_dim]
  const std::int32_t* scale_row = nullptr;  // [num_rows]; null: no scaling
  const std::uint8_t* packed = nullptr;
  Mode mode = Mode::kWrite;
};
// The packed form is read, the listed vectors are written (and read first, unless replaced) in the model's precision; a product and
// a sum per element, one more of each with scales and with another mode.
OpCall call(const Dequantize&);
void run_cpu(const Dequantize&);
// On a GPU scale_row is in CPU memory; channel_scale and packed are in device memory.
void run_cuda(const Dequantize&, CudaContext&);

// As stored K and V (kernels/storage/stored/stored_code.h).
void stored_arrays(Dequantize&, StoredArrays&);
bool goes_on(const Dequantize&, const Dequantize& later, std::span<const RowList> lists);

}  // namespace kvlab
