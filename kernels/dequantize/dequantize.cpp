#include "kernels/dequantize/dequantize.h"

#include <algorithm>
#include <vector>

#include "kernels/quantize/quantize.h"

namespace kvlab {

OpCall call(const Dequantize& a) {
  const std::int64_t n = a.tokens.total(), d = a.tokens.kv.head_dim, rows = a.tokens.kv.num_rows;
  const std::int64_t scaled = a.scale_row != nullptr ? 1 : 0, reads = a.mode != Dequantize::Mode::kWrite ? 1 : 0;
  const std::int64_t moved =
      packed_bytes(a.tokens, a.codec) + (1 + reads) * a.tokens.dense_bytes() + a.tokens.list_bytes() + scaled * 2 * rows * d;
  return {"dequantize", rows, n, n, moved, n * d * (2 + scaled + reads)};
}

namespace {

void put(const Dequantize& a, float value, float& x) {
  x = a.mode == Dequantize::Mode::kWrite ? value : a.mode == Dequantize::Mode::kAdd ? x + value : x - value;
}

// Groups along channels: token by token.
void decode_tokens(const Dequantize& a, std::int32_t row, const float* scale, const std::uint8_t* packed) {
  const std::int32_t d = a.tokens.kv.head_dim, tokens = a.tokens.count(row);
  std::vector<float> group(static_cast<std::size_t>(d));
  for_each_group(a.codec, tokens, d, [&](std::int32_t t, std::int32_t, std::int32_t c, std::int32_t width, std::int64_t at) {
    float* const x = a.tokens.at(row, t) + c;
    if (a.mode == Dequantize::Mode::kWrite && scale == nullptr) return decode_group(a.codec, packed + at, width, x);
    decode_group(a.codec, packed + at, width, group.data());
    for (std::int32_t j = 0; j < width; ++j)
      put(a, scale == nullptr ? group[static_cast<std::size_t>(j)] : group[static_cast<std::size_t>(j)] * scale[c + j], x[j]);
  });
}

// Groups along tokens: a block of tokens at a time, which is written when all of its channels are decoded.
void decode_channels(const Dequantize& a, std::int32_t row, const float* scale, const std::uint8_t* packed) {
  const std::int32_t d = a.tokens.kv.head_dim, entries = a.tokens.entries(row), tokens = a.tokens.count(row);
  std::vector<float> block;  // [channels, count]
  for_each_group(a.codec, entries, d, [&](std::int32_t t, std::int32_t count, std::int32_t c, std::int32_t, std::int64_t at) {
    count = std::min(count, tokens - t);
    if (count <= 0) return;
    block.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(d));
    decode_group(a.codec, packed + at, count, block.data() + std::int64_t{c} * count);
    if (c + 1 < d) return;
    for (std::int32_t i = 0; i < count; ++i) {
      float* const x = a.tokens.at(row, t + i);
      const float* from = block.data() + i;
      for (std::int32_t j = 0; j < d; ++j, from += count) put(a, scale == nullptr ? *from : *from * scale[j], x[j]);
    }
  });
}

}  // namespace

void run_cpu(const Dequantize& a) {
  const std::int32_t d = a.tokens.kv.head_dim;
  const std::uint8_t* packed = a.packed;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const float* const scale = a.scale_row == nullptr ? nullptr : a.channel_scale + static_cast<std::int64_t>(a.scale_row[r]) * d;
    if (a.codec.axis == GroupCodec::Axis::kToken)
      decode_tokens(a, r, scale, packed);
    else
      decode_channels(a, r, scale, packed);
    packed += packed_bytes(a.codec, a.tokens.entries(r), d);
  }
}

}  // namespace kvlab
