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

// The groups of entries [t, t + room), the first `count` of which stand for tokens; they are written when all channels are decoded.
void decode_unit(const Dequantize& a, std::int32_t row, std::int32_t t, std::int32_t room, std::int32_t count, std::int32_t channels,
                 const std::uint8_t* packed, std::vector<float>& block) {
  const std::int32_t d = a.tokens.kv.head_dim;
  const float* const scale = a.scale_row == nullptr ? nullptr : a.channel_scale + static_cast<std::int64_t>(a.scale_row[row]) * d;
  const bool is_plain = room == 1 && scale == nullptr && a.mode == Dequantize::Mode::kWrite;
  block.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(d));
  float* const decoded = is_plain ? a.tokens.at(row, t) : block.data();  // [channels, count]
  for (std::int32_t c = 0; c < d; c += channels) {
    const std::int64_t width = std::min(channels, d - c);
    decode_group(a.codec, packed, width * count, decoded + std::int64_t{c} * count);
    packed += group_bytes(a.codec, width * room);
  }
  for (std::int32_t i = 0; i < count && !is_plain; ++i) {
    float* const x = a.tokens.at(row, t + i);
    const float* from = block.data() + i;
    for (std::int32_t j = 0; j < d; ++j, from += count) put(a, scale == nullptr ? *from : *from * scale[j], x[j]);
  }
}

}  // namespace

void run_cpu(const Dequantize& a) {
  for_each_stretch(a.tokens, a.codec, [&](std::int32_t row, std::int32_t first, std::int32_t entries, std::int64_t at) {
    const std::int32_t d = a.tokens.kv.head_dim, tokens = a.tokens.count(row);
    const GroupUnits unit = units_of(a.codec, a.tokens.entries(row), d);
    std::vector<float> block;
    for (std::int32_t t = first; t < std::min(first + entries, tokens); t += unit.tokens) {
      const std::int32_t room = std::min(unit.tokens, first + entries - t);
      decode_unit(a, row, t, room, std::min(room, tokens - t), unit.channels, a.packed + at + packed_bytes(a.codec, t - first, d), block);
    }
  });
}

}  // namespace kvlab
