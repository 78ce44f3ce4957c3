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

void run_cpu(const Dequantize& a) {
  const std::int32_t d = a.tokens.kv.head_dim;
  std::vector<float> group;
  const std::uint8_t* packed = a.packed;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::int32_t entries = a.tokens.entries(r), tokens = a.tokens.count(r);
    const float* const scale = a.scale_row == nullptr ? nullptr : a.channel_scale + static_cast<std::int64_t>(a.scale_row[r]) * d;
    for_each_group(a.codec, entries, d, [&](std::int32_t t, std::int32_t count, std::int32_t c, std::int32_t width, std::int64_t at) {
      count = std::min(count, tokens - t);
      if (count <= 0) return;
      group.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(width));
      decode_group(a.codec, packed + at, static_cast<std::int64_t>(group.size()), group.data());
      const float* from = group.data();
      for (std::int32_t i = 0; i < count; ++i) {
        float* const x = a.tokens.at(r, t + i) + c;
        for (std::int32_t j = 0; j < width; ++j, ++from) {
          const float value = scale == nullptr ? *from : *from * scale[c + j];
          x[j] = a.mode == Dequantize::Mode::kWrite ? value : a.mode == Dequantize::Mode::kAdd ? x[j] + value : x[j] - value;
        }
      }
    });
    packed += packed_bytes(a.codec, entries, d);
  }
}

}  // namespace kvlab
