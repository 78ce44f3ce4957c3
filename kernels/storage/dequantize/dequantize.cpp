#include "kernels/storage/dequantize/dequantize.h"

#include <algorithm>
#include <vector>

#include "kernels/storage/quantize/quantize.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

OpCall call(const Dequantize& a) {
  const std::int64_t n = a.tokens.total(), d = a.tokens.kv.head_dim, rows = a.tokens.kv.num_rows;
  const std::int64_t scaled = a.scale_row != nullptr ? 1 : 0, reads = a.mode != Dequantize::Mode::kWrite ? 1 : 0;
  const std::int64_t moved =
      packed_bytes(a.tokens, a.codec) + (1 + reads) * a.tokens.dense_bytes() + a.tokens.list_bytes() + scaled * 2 * rows * d;
  return {.op = "dequantize", .rows = rows, .tokens = n, .outputs = n, .bytes = moved, .flops = n * d * (2 + scaled + reads)};
}
KVLAB_WITHOUT_CUDA(Dequantize)

namespace {

void put(const Dequantize& a, float value, float& x) {
  x = a.mode == Dequantize::Mode::kWrite ? value : a.mode == Dequantize::Mode::kAdd ? x + value : x - value;
}

// Tokens are written when all of the unit's channels are decoded.
void decode_unit(const Dequantize& a, const EncodedUnit& unit, std::vector<float>& scratch) {
  const std::int32_t d = a.tokens.kv.head_dim, count = unit.tokens;
  const float* const scale = a.scale_row == nullptr ? nullptr : a.channel_scale + static_cast<std::int64_t>(a.scale_row[unit.row]) * d;
  const bool is_plain = unit.room == 1 && scale == nullptr && a.mode == Dequantize::Mode::kWrite;
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

void run_cpu(const Dequantize& a) {
  for_each_unit(a.tokens, a.codec, [&](const EncodedUnit& unit, std::vector<float>& scratch) { decode_unit(a, unit, scratch); });
}

void stored_arrays(Dequantize& a, StoredArrays& arrays) {
  arrays.rows(a.packed, [&](std::int64_t entries) { return packed_bytes(a.codec, entries, a.tokens.kv.head_dim); });
  arrays.lines(a.channel_scale, a.scale_row, a.tokens.kv.head_dim);
}

// Groups of a channel end with the tokens so far.
bool goes_on(const Dequantize& a, const Dequantize& later, std::span<const RowList> lists) {
  const auto is_whole = [&](const RowList& list) {
    return a.codec.axis == GroupCodec::Axis::kToken || (a.codec.group > 0 && list.entries % a.codec.group == 0);
  };
  return later.codec == a.codec && later.mode == a.mode && std::all_of(lists.begin(), lists.end(), is_whole);
}

}  // namespace kvlab
