#include "kernels/storage/quantize/quantize.h"

#include <algorithm>
#include <vector>

#include "base/ceil_div.h"
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
  return {.op = "quantize", .rows = rows, .tokens = n, .outputs = n, .bytes = moved, .flops = n * d * (scaled ? 5 : 4)};
}
KVLAB_WITHOUT_CUDA(Quantize)

void for_each_unit(const ListedTokens& tokens, const GroupCodec& codec,
                   const std::function<void(const EncodedUnit&, std::vector<float>&)>& f) {
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
    const std::int32_t unit = units_of(codec, entries, d).tokens, step = round_up(kEntries, unit);
    for (std::int32_t first = 0; first < entries; first += step) {
      const std::int32_t count = std::min(step, entries - first);
      stretches.push_back({r, first, count, at});
      at += packed_bytes(codec, count, d);
    }
  }
  const auto run = [&](std::int64_t i) {
    const Stretch& s = stretches[static_cast<std::size_t>(i)];
    const GroupUnits unit = units_of(codec, tokens.entries(s.row), d);
    const std::int32_t end = s.first + s.entries, listed = tokens.count(s.row);
    std::vector<float> scratch;
    for (std::int32_t t = s.first; t < std::min(end, listed); t += unit.tokens) {
      const std::int32_t room = std::min(unit.tokens, end - t);
      f({s.row, t, room, std::min(room, listed - t), unit.channels, s.at + packed_bytes(codec, t - s.first, d)}, scratch);
    }
  };
  const auto count = static_cast<std::int64_t>(stretches.size());
  if (tokens.total() > kEntries) return for_each_in_parallel(count, run);
  for (std::int64_t i = 0; i < count; ++i) run(i);  // waking other cores takes longer
}

namespace {

// scratch[j * tokens + i]: encoded value of token i, channel j.
void encode_unit(const Quantize& a, const EncodedUnit& unit, std::vector<float>& scratch) {
  const std::int32_t d = a.tokens.kv.head_dim, count = unit.tokens;
  const float* const scale = a.scale_row == nullptr ? nullptr : a.channel_scale + static_cast<std::int64_t>(a.scale_row[unit.row]) * d;
  scratch.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(d));
  for (std::int32_t i = 0; i < count; ++i) {
    const float* const from = a.tokens.at(unit.row, unit.first + i);
    float* to = scratch.data() + i;
    for (std::int32_t j = 0; j < d; ++j, to += count) *to = scale == nullptr ? from[j] : from[j] / scale[j];
  }
  std::uint8_t* packed = a.packed + unit.at;
  for (std::int32_t c = 0; c < d; c += unit.channels) {
    const std::int64_t width = std::min(unit.channels, d - c);
    encode_group(a.codec, scratch.data() + std::int64_t{c} * count, width * count, packed);
    packed += group_bytes(a.codec, width * unit.room);
  }
}

}  // namespace

void run_cpu(const Quantize& a) {
  std::fill_n(a.packed, packed_bytes(a.tokens, a.codec), std::uint8_t{0});
  for_each_unit(a.tokens, a.codec, [&](const EncodedUnit& unit, std::vector<float>& scratch) { encode_unit(a, unit, scratch); });
}

}  // namespace kvlab
