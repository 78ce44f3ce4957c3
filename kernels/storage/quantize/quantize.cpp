#include "kernels/storage/quantize/quantize.h"

#include <algorithm>
#include <vector>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

std::int64_t packed_bytes(const ListedTokens& tokens, const GroupCodec& codec) {
  std::int64_t bytes = 0;
  for (std::int32_t r = 0; r < tokens.kv.num_rows; ++r) bytes += packed_bytes(codec, tokens.entries(r), tokens.kv.head_dim);
  return bytes;
}

OpCall call(const Quantize& a) {
  const std::int64_t n = a.tokens.total(), d = a.tokens.kv.head_dim, rows = a.tokens.kv.num_rows;
  const bool encodes = a.mode == Quantize::Mode::kEncode;
  const std::int64_t scaled = a.scale_row != nullptr ? 1 : 0, reads = encodes || a.mode == Quantize::Mode::kWrite ? 0 : 1;
  const std::int64_t moved =
      packed_bytes(a.tokens, a.codec) + (1 + reads) * a.tokens.dense_bytes() + a.tokens.list_bytes() + scaled * 2 * rows * d;
  return {.op = encodes ? "quantize" : "dequantize",
          .rows = rows,
          .tokens = n,
          .outputs = n,
          .bytes = moved,
          .flops = n * d * ((encodes ? 4 : 2) + scaled + reads)};
}
KVLAB_WITHOUT_CUDA(Quantize)

namespace {

// Entries [first, first + room) encoded together, from byte `at` on; `tokens` hold tokens.
struct EncodedUnit {
  std::int32_t row = 0, first = 0, room = 0, tokens = 0, channels = 0;
  std::int64_t at = 0;
};

// f(unit, scratch) on all cores for units that hold a token.
template <class F>
void for_each_unit(const ListedTokens& tokens, const GroupCodec& codec, F&& f) {
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
      f(EncodedUnit{s.row, t, room, std::min(room, listed - t), unit.channels, s.at + packed_bytes(codec, t - s.first, d)}, scratch);
    }
  };
  const auto count = static_cast<std::int64_t>(stretches.size());
  if (tokens.total() > kEntries) return for_each_in_parallel(count, run);
  for (std::int64_t i = 0; i < count; ++i) run(i);  // waking other cores takes longer
}

const float* scale_of(const Quantize& a, std::int32_t row) {
  return a.scale_row == nullptr ? nullptr : a.channel_scale + static_cast<std::int64_t>(a.scale_row[row]) * a.tokens.kv.head_dim;
}

// scratch[j * tokens + i]: encoded value of token i, channel j.
void encode_unit(const Quantize& a, const EncodedUnit& unit, std::vector<float>& scratch) {
  const std::int32_t d = a.tokens.kv.head_dim, count = unit.tokens;
  const float* const scale = scale_of(a, unit.row);
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

void put(const Quantize& a, float value, float& x) {
  x = a.mode == Quantize::Mode::kWrite ? value : a.mode == Quantize::Mode::kAdd ? x + value : x - value;
}

// Writes tokens when all channels are decoded.
void decode_unit(const Quantize& a, const EncodedUnit& unit, std::vector<float>& scratch) {
  const std::int32_t d = a.tokens.kv.head_dim, count = unit.tokens;
  const float* const scale = scale_of(a, unit.row);
  const bool is_plain = unit.room == 1 && scale == nullptr && a.mode == Quantize::Mode::kWrite;
  scratch.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(d));
  float* const decoded = is_plain ? a.tokens.at(unit.row, unit.first) : scratch.data();  // [channels, count]
  const std::uint8_t* packed = a.packed + unit.at;
  for (std::int32_t c = 0; c < d; c += unit.channels) {
    const std::int64_t width = std::min(unit.channels, d - c);
    decode_group(a.codec, packed, width * count, decoded + std::int64_t{c} * count);
    packed += group_bytes(a.codec, width * unit.room);
  }
  if (is_plain) return;
  constexpr std::int32_t kTokens = 16;  // a cache line of each channel
  float* token[kTokens];
  for (std::int32_t first = 0; first < count; first += kTokens) {
    const std::int32_t tokens = std::min(kTokens, count - first);
    for (std::int32_t i = 0; i < tokens; ++i) token[i] = a.tokens.at(unit.row, unit.first + first + i);
    for (std::int32_t j = 0; j < d; ++j) {
      const float* const from = scratch.data() + std::int64_t{j} * count + first;
      const float times = scale == nullptr ? 1.0F : scale[j];
      for (std::int32_t i = 0; i < tokens; ++i) put(a, from[i] * times, token[i][j]);
    }
  }
}

}  // namespace

void run_cpu(const Quantize& a) {
  const bool encodes = a.mode == Quantize::Mode::kEncode;
  if (encodes) std::fill_n(a.packed, packed_bytes(a.tokens, a.codec), std::uint8_t{0});
  for_each_unit(a.tokens, a.codec, [&](const EncodedUnit& unit, std::vector<float>& scratch) {
    encodes ? encode_unit(a, unit, scratch) : decode_unit(a, unit, scratch);
  });
}

void stored_arrays(Quantize& a, StoredArrays& arrays) {
  arrays.rows(a.packed, [&](std::int64_t entries) { return packed_bytes(a.codec, entries, a.tokens.kv.head_dim); });
  arrays.lines(a.channel_scale, a.scale_row, a.tokens.kv.head_dim);
}

// Groups of a channel end with the tokens so far.
bool goes_on(const Quantize& a, const Quantize& later, std::span<const RowList> lists) {
  const auto is_whole = [&](const RowList& list) {
    return a.codec.axis == GroupCodec::Axis::kToken || (a.codec.group > 0 && list.entries % a.codec.group == 0);
  };
  return later.codec == a.codec && later.mode == a.mode && std::all_of(lists.begin(), lists.end(), is_whole);
}

}  // namespace kvlab
