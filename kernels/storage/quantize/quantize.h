#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"
#include "kernels/storage/quantize/group_codec.h"

namespace kvlab {

// Encodes each row's listed tokens [entries, head_dim] into consecutive bytes, row after row. With channel scales, encodes x /
// channel_scale (smoothing). Entries of -1 take the space of a token.
struct Quantize {
  ListedTokens tokens;
  GroupCodec codec;
  const float* channel_scale = nullptr;     // [*, head_dim], > 0; row r has line scale_row[r]
  const std::int32_t* scale_row = nullptr;  // [num_rows]; null: no scaling
  std::uint8_t* packed = nullptr;           // [packed_bytes(tokens, codec)] out
};
std::int64_t packed_bytes(const ListedTokens& tokens, const GroupCodec& codec);
// Entries [first, first + room) of a row that are encoded together, from byte `at` on. Only the first `tokens` entries hold tokens.
struct EncodedUnit {
  std::int32_t row = 0, first = 0, room = 0, tokens = 0, channels = 0;
  std::int64_t at = 0;
};
// Calls f(unit, scratch) on all cores for all units that hold a token; one call at a time uses `scratch`.
void for_each_unit(const ListedTokens& tokens, const GroupCodec& codec,
                   const std::function<void(const EncodedUnit&, std::vector<float>&)>& f);
OpCall call(const Quantize&);
void run_cpu(const Quantize&);
// On a GPU scale_row is in CPU memory.
void run_cuda(const Quantize&, CudaContext&);

}  // namespace kvlab
