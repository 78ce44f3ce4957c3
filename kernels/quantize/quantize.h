#pragma once

#include <cstdint>
#include <functional>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"
#include "kernels/quantize/group_codec.h"

namespace kvlab {

// Encodes the listed tokens of each row, a row's list as one matrix [entries, head_dim], into consecutive bytes, row after row. With
// channel scales, x / channel_scale is what is encoded (smoothing, folded into q where the scale is known before the prompt).
// Entries of -1 take the room of a token and hold nothing.
struct Quantize {
  ListedTokens tokens;
  GroupCodec codec;
  const float* channel_scale = nullptr;     // [*, head_dim], > 0; line scale_row[r] is row r's
  const std::int32_t* scale_row = nullptr;  // [num_rows]; null: no scaling
  std::uint8_t* packed = nullptr;           // [packed_bytes(tokens, codec)] out
};
std::int64_t packed_bytes(const ListedTokens& tokens, const GroupCodec& codec);
// Calls f(row, first entry, entries, byte offset of the first one's groups) for stretches of whole units that cover all rows' lists, on
// all cores.
void for_each_stretch(const ListedTokens& tokens, const GroupCodec& codec,
                      const std::function<void(std::int32_t row, std::int32_t first, std::int32_t entries, std::int64_t at)>& f);
// The listed vectors are read in the model's precision, the packed form is written; per element two comparisons for the range,
// a subtraction and a product (one more product with channel scales).
OpCall call(const Quantize&);
void run_cpu(const Quantize&);
// On a GPU scale_row is host memory; channel_scale and packed are device memory.
void run_cuda(const Quantize&, CudaContext&);

}  // namespace kvlab
