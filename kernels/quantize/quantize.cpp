#include "kernels/quantize/quantize.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"

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

void for_each_stretch(const ListedTokens& tokens, const GroupCodec& codec,
                      const std::function<void(std::int32_t, std::int32_t, std::int32_t, std::int64_t)>& f) {
  constexpr std::int32_t kEntries = 128;  // at least, if there are as many
  struct Stretch {
    std::int32_t row, first, entries;
    std::int64_t at;
  };
  std::vector<Stretch> stretches;
  const std::int32_t d = tokens.kv.head_dim;
  std::int64_t at = 0;
  for (std::int32_t r = 0; r < tokens.kv.num_rows; ++r) {
    const std::int32_t entries = tokens.entries(r);
    if (entries == 0) continue;
    const std::int32_t unit = units_of(codec, entries, d).tokens, step = (kEntries + unit - 1) / unit * unit;
    for (std::int32_t first = 0; first < entries; first += step) {
      const std::int32_t count = std::min(step, entries - first);
      stretches.push_back({r, first, count, at});
      at += packed_bytes(codec, count, d);
    }
  }
  const auto run = [&](std::int64_t i) {
    const Stretch& s = stretches[static_cast<std::size_t>(i)];
    f(s.row, s.first, s.entries, s.at);
  };
  const auto count = static_cast<std::int64_t>(stretches.size());
  if (tokens.total() > kEntries) return for_each_in_parallel(count, run);
  for (std::int64_t i = 0; i < count; ++i) run(i);  // waking other cores takes longer
}

namespace {

// The groups of entries [t, t + room), the first `count` of which stand for tokens: x[j * count + i] is what is encoded of entry t + i and
// channel j.
void encode_unit(const Quantize& a, std::int32_t row, std::int32_t t, std::int32_t room, std::int32_t count, std::int32_t channels,
                 std::uint8_t* packed, std::vector<float>& x) {
  const std::int32_t d = a.tokens.kv.head_dim;
  const float* const scale = a.scale_row == nullptr ? nullptr : a.channel_scale + static_cast<std::int64_t>(a.scale_row[row]) * d;
  x.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(d));
  for (std::int32_t i = 0; i < count; ++i) {
    const float* const from = a.tokens.at(row, t + i);
    float* to = x.data() + i;
    for (std::int32_t j = 0; j < d; ++j, to += count) *to = scale == nullptr ? from[j] : from[j] / scale[j];
  }
  for (std::int32_t c = 0; c < d; c += channels) {
    const std::int64_t width = std::min(channels, d - c);
    encode_group(a.codec, x.data() + std::int64_t{c} * count, width * count, packed);
    packed += group_bytes(a.codec, width * room);
  }
}

}  // namespace

void run_cpu(const Quantize& a) {
  std::fill_n(a.packed, packed_bytes(a.tokens, a.codec), std::uint8_t{0});
  for_each_stretch(a.tokens, a.codec, [&](std::int32_t row, std::int32_t first, std::int32_t entries, std::int64_t at) {
    const std::int32_t d = a.tokens.kv.head_dim, tokens = a.tokens.count(row);
    const GroupUnits unit = units_of(a.codec, a.tokens.entries(row), d);
    std::vector<float> x;
    for (std::int32_t t = first; t < std::min(first + entries, tokens); t += unit.tokens) {
      const std::int32_t room = std::min(unit.tokens, first + entries - t);
      encode_unit(a, row, t, room, std::min(room, tokens - t), unit.channels, a.packed + at + packed_bytes(a.codec, t - first, d), x);
    }
  });
}

}  // namespace kvlab
