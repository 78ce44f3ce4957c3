#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"
#include "kernels/storage/quantize/group_codec.h"

namespace kvlab {

// Encodes the listed tokens of each row, a row's list as one matrix [entries, head_dim], into consecutive bytes, row after row. With
// channel scales, encodes x / channel_scale (smoothing, folded into q if the scale is known before the prompt). Entries of -1 take the
// space of a token and hold nothing.
struct Quantize {
  ListedTokens tokens;
  GroupCodec codec;
  const float* channel_scale = nullptr;     // [*, head_dim], > 0; line scale_row[r] is row r's
  const std::int32_t* scale_row = nullptr;  // [num_rows]; null: no scaling
  std::uint8_t* packed = nullptr;           // [packed_bytes(tokens, codec)] out
};
std::int64_t packed_bytes(const ListedTokens& tokens, const GroupCodec& codec);
// Entries [first, first + room) of a row that are encoded together, in groups of `channels` channels, from byte `at` on. Only the first
// `tokens` entries hold tokens.
struct EncodedUnit {
  std::int32_t row = 0, first = 0, room = 0, tokens = 0, channels = 0;
  std::int64_t at = 0;
};
// Calls f(unit, scratch) on all cores for all units of all rows' lists that hold a token; `scratch` is used by one call at a time.
void for_each_unit(const ListedTokens& tokens, const GroupCodec& codec,
                   const std::function<void(const EncodedUnit&, std::vector<float>&)>& f);
// The listed vectors are read in the model's precision, the packed form is written; per element two comparisons for the range,
// a subtraction and a product (one more product with channel scales).
OpCall call(const Quantize&);
void run_cpu(const Quantize&);
// On a GPU scale_row is in CPU memory; channel_scale and packed are in device memory.
void run_cuda(const Quantize&, CudaContext&);

}  // namespace kvlab
