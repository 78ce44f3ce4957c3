#include "kernels/quantize/quantize.h"

#include <algorithm>
#include <vector>

namespace kvlab {

std::int64_t packed_bytes(const ListedTokens& tokens, const GroupCodec& codec) {
  std::int64_t bytes = 0;
  for (std::int32_t r = 0; r < tokens.kv.num_rows; ++r) bytes += packed_bytes(codec, tokens.entries(r), tokens.kv.head_dim);
  return bytes;
}

OpCall call(const Quantize& a) {
  const std::int64_t n = a.tokens.total(), d = a.tokens.kv.head_dim, rows = a.tokens.kv.num_rows;
  const bool scaled = a.scale_row != nullptr;
  const std::int64_t moved = a.tokens.dense_bytes() + a.tokens.list_bytes() + packed_bytes(a.tokens, a.codec) + (scaled ? 2 * rows * d : 0);
  return {"quantize", rows, n, n, moved, n * d * (scaled ? 5 : 4)};
}

void run_cpu(const Quantize& a) {
  const std::int32_t d = a.tokens.kv.head_dim;
  std::vector<float> group;
  std::uint8_t* packed = a.packed;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const std::int32_t entries = a.tokens.entries(r), tokens = a.tokens.count(r);
    const std::int64_t bytes = packed_bytes(a.codec, entries, d);
    std::fill_n(packed, bytes, std::uint8_t{0});
    const float* const scale = a.scale_row == nullptr ? nullptr : a.channel_scale + static_cast<std::int64_t>(a.scale_row[r]) * d;
    for_each_group(a.codec, entries, d, [&](std::int32_t t, std::int32_t count, std::int32_t c, std::int32_t width, std::int64_t at) {
      count = std::min(count, tokens - t);
      if (count <= 0) return;
      group.clear();
      for (std::int32_t i = 0; i < count; ++i) {
        const float* const x = a.tokens.at(r, t + i) + c;
        for (std::int32_t j = 0; j < width; ++j) group.push_back(scale == nullptr ? x[j] : x[j] / scale[c + j]);
      }
      encode_group(a.codec, group.data(), static_cast<std::int64_t>(group.size()), packed + at);
    });
    packed += bytes;
  }
}

}  // namespace kvlab
