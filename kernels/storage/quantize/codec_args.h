#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/device/cuda/device_list.h"
#include "kernels/storage/quantize/quantize.h"

namespace kvlab {

struct CodecArgs {
  DeviceList list;
  const std::int64_t* base = nullptr;  // [num_rows] first byte in packed
  std::uint8_t* packed = nullptr;
  const float* channel_scale = nullptr;
  const std::int32_t* scale_row = nullptr;  // [num_rows]; null: no scaling
  std::int32_t bits = 4, header = 4;        // header: bytes before a group's codes
  std::int32_t group = 0;                   // elements; 0: the length of a row's list
  bool symmetric = false, across = true;    // across: groups along channels
  std::int32_t align = 1;                   // of such groups in bytes: 4, 2 or 1
  std::int32_t tiles = 1;                   // blocks per row

  KVLAB_BOTH std::int64_t group_bytes(std::int64_t elements) const { return header + (elements * bits + 7) / 8; }
  KVLAB_BOTH const float* scales(std::int32_t row) const {
    return scale_row == nullptr ? nullptr : channel_scale + static_cast<std::int64_t>(scale_row[row]) * list.rows.head_dim;
  }
};

// Valid until the context's current Frame ends.
inline CodecArgs codec_args(const Quantize& op, CudaContext& cuda) {
  const KvRows& kv = op.tokens.kv;
  if (kv.pool_tokens > std::numeric_limits<std::int32_t>::max())
    throw CudaError("quantizing a pool of " + std::to_string(kv.pool_tokens) + " tokens; kernels number them with 31 bits");
  std::vector<std::int64_t> base(static_cast<std::size_t>(kv.num_rows));
  std::int64_t bytes = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    base[static_cast<std::size_t>(r)] = bytes;
    bytes += packed_bytes(op.codec, op.tokens.entries(r), kv.head_dim);
  }
  CodecArgs a;
  a.list = on_device(op.tokens, cuda);
  a.base = cuda.upload(base.data(), kv.num_rows);
  a.packed = op.packed;
  a.channel_scale = op.channel_scale;
  a.scale_row = cuda.upload(op.scale_row, kv.num_rows);
  a.bits = op.codec.bits, a.symmetric = op.codec.symmetric, a.header = op.codec.symmetric ? 2 : 4;
  a.across = op.codec.axis == GroupCodec::Axis::kToken;
  a.group = op.codec.group > 0 ? op.codec.group : 0;
  if (!a.across) return a;
  if (a.group == 0 || a.group > kv.head_dim) a.group = kv.head_dim;
  // Rows begin at multiples of a token's bytes.
  const std::int64_t all = reinterpret_cast<std::intptr_t>(op.packed) | a.header | a.group_bytes(a.group) | a.bits;
  a.align = all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
  return a;
}

// Groups along channels of 8 * 2^n numbers, n <= 5, in aligned vectors of 8: one per lane.
inline bool fits_lanes(const CodecArgs& a) {
  const std::int32_t d = a.list.rows.head_dim;
  const bool power_of_two = (a.group & (a.group - 1)) == 0;
  return a.across && a.group >= 8 && a.group <= 256 && power_of_two && d % a.group == 0 &&
         (reinterpret_cast<std::uintptr_t>(a.list.data) | reinterpret_cast<std::uintptr_t>(a.channel_scale)) % 16 == 0;
}

// Along tokens, for even head_dim and no scaling.
void quantize_channels(CodecArgs a, ElementType type, CudaContext& cuda);
void dequantize_channels(CodecArgs a, Quantize::Mode mode, ElementType type, CudaContext& cuda);
// Any groups.
void dequantize_groups(const CodecArgs& a, Quantize::Mode mode, ElementType type, CudaContext& cuda);

}  // namespace kvlab
