#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// b-bit codes of groups. Asymmetric: x ~ zero + scale * code with zero = min and scale = (max - min) / (2^b - 1) (KIVI, Liu et al. 2024,
// arXiv:2402.02750, section 2). Symmetric: x ~ scale * code with scale = max |x| / (2^(b-1) - 1), b >= 2. fp16 rounds zero down and scale
// up: no fp16 value is clamped, errors are at most half a step. Constant groups that fp16 holds have scale 0 and are exact.
struct GroupCodec {
  enum class Axis : std::uint8_t {
    kToken,   // `group` neighbouring channels of a token
    kChannel  // `group` consecutive tokens of the list in a channel
  };
  Axis axis = Axis::kToken;
  std::int32_t bits = 4;   // 1 to 8
  std::int32_t group = 0;  // elements; 0: all channels, or all tokens encoded together. The last group may be shorter.
  bool symmetric = false;
  friend bool operator==(const GroupCodec&, const GroupCodec&) = default;
};

// fp16 zero (if asymmetric) and scale, then codes, lowest bits first, in whole bytes.
constexpr std::int64_t group_bytes(const GroupCodec& codec, std::int64_t elements) {
  return (codec.symmetric ? 2 : 4) + (elements * codec.bits + 7) / 8;
}
// K or V of one KV head.
std::int64_t packed_bytes(const GroupCodec& codec, std::int64_t tokens, std::int64_t head_dim);

// x [n] <-> group_bytes(codec, n) bytes. NaN becomes the group's zero, numbers outside the fp16 range the nearest in it.
void encode_group(const GroupCodec& codec, const float* x, std::int64_t n, std::uint8_t* packed);
void decode_group(const GroupCodec& codec, const std::uint8_t* packed, std::int64_t n, float* x);

// Consecutive tokens (the last unit may be shorter) by groups of `channels`.
struct GroupUnits {
  std::int32_t tokens = 1, channels = 1;
};
constexpr GroupUnits units_of(const GroupCodec& codec, std::int32_t tokens, std::int32_t head_dim) {
  const bool across = codec.axis == GroupCodec::Axis::kToken;
  const std::int32_t longest = across ? head_dim : tokens, size = codec.group > 0 && codec.group < longest ? codec.group : longest;
  return across ? GroupUnits{1, size} : GroupUnits{size, 1};
}

// f(first token, tokens, first channel, channels, byte offset) by unit, then by channel.
template <class F>
void for_each_group(const GroupCodec& codec, std::int32_t tokens, std::int32_t head_dim, F&& f) {
  const GroupUnits unit = units_of(codec, tokens, head_dim);
  std::int64_t at = 0;
  for (std::int32_t t = 0; t < tokens; t += unit.tokens) {
    const std::int32_t count = unit.tokens < tokens - t ? unit.tokens : tokens - t;
    for (std::int32_t c = 0; c < head_dim; c += unit.channels) {
      const std::int32_t width = unit.channels < head_dim - c ? unit.channels : head_dim - c;
      f(t, count, c, width, at);
      at += group_bytes(codec, static_cast<std::int64_t>(count) * width);
    }
  }
}

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
