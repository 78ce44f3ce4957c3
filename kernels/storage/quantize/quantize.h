#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "kernels/storage/quantize/group_codec.h"

namespace kvlab {

class StoredArrays;
struct RowList;

// Encodes each row's listed tokens [entries, head_dim] into consecutive bytes; or decodes them (same list, codec and scales) and replaces,
// subtracts from (quantization error) or adds to the listed vectors. With channel scales codes are of x / channel_scale (smoothing).
// Entries of -1 take a token's space.
struct Quantize {
  enum class Mode : std::uint8_t { kEncode, kWrite, kSubtract, kAdd };
  ListedTokens tokens;
  GroupCodec codec;
  const float* channel_scale = nullptr;     // [*, head_dim], > 0; row r has line scale_row[r]
  const std::int32_t* scale_row = nullptr;  // [num_rows]; null: no scaling. In CPU memory
  std::uint8_t* packed = nullptr;           // [packed_bytes(tokens, codec)]; kEncode: out
  Mode mode = Mode::kEncode;
};
std::int64_t packed_bytes(const ListedTokens& tokens, const GroupCodec& codec);
// "quantize" or "dequantize".
OpCall call(const Quantize&);
void run_cpu(const Quantize&);
void run_cuda(const Quantize&, CudaContext&);

void stored_arrays(Quantize&, StoredArrays&);
bool goes_on(const Quantize&, const Quantize& later, std::span<const RowList> lists);

}  // namespace kvlab
