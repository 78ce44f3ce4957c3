#include "kernels/storage/quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/ceil_div.h"
#include "base/half.h"
#include "base/parallel.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

namespace {

constexpr float kMostHalf = 65504.0F;

float clamped(float x) { return std::clamp(x, -kMostHalf, kMostHalf); }

// Largest fp16 number not above x; half_above(): smallest not below it; x in fp16's range.
std::uint16_t half_below(float x) {
  const std::uint16_t half = float_to_half(x);
  if (half_to_float(half) <= x) return half;
  if ((half & 0x7fffU) == 0) return 0x8001U;
  return static_cast<std::uint16_t>((half & 0x8000U) != 0 ? half + 1 : half - 1);
}
std::uint16_t half_above(float x) { return static_cast<std::uint16_t>(half_below(-x) ^ 0x8000U); }

struct Step {
  float zero, scale;
  std::int32_t least, most;  // codes
};

Step step_of(const GroupCodec& codec, const std::uint8_t* packed) {
  std::uint16_t halves[2] = {0, 0};
  std::memcpy(halves, packed, codec.symmetric ? 2 : 4);
  if (codec.symmetric) {
    const std::int32_t most = (1 << (codec.bits - 1)) - 1;
    return {0.0F, half_to_float(halves[0]), -most, most};
  }
  return {half_to_float(halves[0]), half_to_float(halves[1]), 0, (1 << codec.bits) - 1};
}

// Without NaN, within fp16's range; 0 if none.
void find_range(const float* x, std::int64_t n, float& least, float& most) {
  constexpr std::int64_t kLanes = 8;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float low[kLanes], high[kLanes];
  std::fill_n(low, kLanes, kInfinity), std::fill_n(high, kLanes, -kInfinity);
  for (std::int64_t i = 0; i < n; i += kLanes)
    for (std::int64_t l = 0; l < std::min(kLanes, n - i); ++l) {
      const float value = x[i + l];  // comparisons with NaN are false
      low[l] = value < low[l] ? value : low[l];
      high[l] = value > high[l] ? value : high[l];
    }
  least = clamped(*std::min_element(low, low + kLanes)), most = clamped(*std::max_element(high, high + kLanes));
  if (least > most) least = most = 0.0F;
  least += 0.0F, most += 0.0F;  // -0 becomes 0: order does not matter
}

void choose_step(const GroupCodec& codec, const float* x, std::int64_t n, std::uint8_t* packed) {
  float least = 0, most = 0;
  find_range(x, n, least, most);
  if (codec.symmetric) {
    const std::uint16_t scale = half_above((std::max(-least, most) + 0.0F) / static_cast<float>((1 << (codec.bits - 1)) - 1));
    std::memcpy(packed, &scale, 2);
    return;
  }
  const std::uint16_t zero = half_below(least);
  const float width = (most - half_to_float(zero)) / static_cast<float>((1 << codec.bits) - 1);
  const std::uint16_t scale = half_above(std::min(width, kMostHalf));  // one bit may exceed fp16
  std::memcpy(packed, &zero, 2);
  std::memcpy(packed + 2, &scale, 2);
}

// Into zero bytes.
template <int kBits>
void put_in_bytes(const std::int32_t* code, std::int64_t n, std::uint8_t* bytes) {
  constexpr int kPerByte = 8 / kBits;
  for (std::int64_t b = 0; b < n / kPerByte; ++b) {
    std::int32_t byte = 0;
    for (int i = 0; i < kPerByte; ++i) byte |= code[b * kPerByte + i] << (i * kBits);
    bytes[b] = static_cast<std::uint8_t>(byte);
  }
  for (std::int64_t i = n / kPerByte * kPerByte; i < n; ++i)
    bytes[i / kPerByte] |= static_cast<std::uint8_t>(code[i] << (i % kPerByte * kBits));
}

void put_codes(int bits, const std::int32_t* code, std::int64_t n, std::uint8_t* bytes) {
  if (bits == 1) return put_in_bytes<1>(code, n, bytes);
  if (bits == 2) return put_in_bytes<2>(code, n, bytes);
  if (bits == 4) return put_in_bytes<4>(code, n, bytes);
  if (bits == 8) return put_in_bytes<8>(code, n, bytes);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t at = i * bits;
    const std::uint32_t moved = static_cast<std::uint32_t>(code[i]) << (at % 8);
    bytes[at / 8] |= static_cast<std::uint8_t>(moved);
    if (at % 8 + bits > 8) bytes[at / 8 + 1] |= static_cast<std::uint8_t>(moved >> 8U);
  }
}

// Bytes hold whole numbers of codes.
template <int kBits>
void decode_bytes(const Step& step, const std::uint8_t* codes, std::int64_t n, float* x) {
  constexpr int kPerByte = 8 / kBits;
  constexpr std::uint32_t kMask = (1U << kBits) - 1U;
  const auto number = [&](std::uint32_t code) {
    return step.zero + step.scale * static_cast<float>(static_cast<std::int32_t>(code) + step.least);
  };
  float numbers[kBits > 2 ? 1 : kMask + 1];  // all numbers of few codes
  if constexpr (kBits <= 2)
    for (std::uint32_t code = 0; code <= kMask; ++code) numbers[code] = number(code);
  const auto decoded = [&](std::uint32_t byte, int i) {
    const std::uint32_t code = byte >> (i * kBits) & kMask;
    if constexpr (kBits <= 2) return numbers[code];
    return number(code);
  };
  const std::int64_t whole = n / kPerByte;
  for (std::int64_t b = 0; b < whole; ++b)
    for (int i = 0; i < kPerByte; ++i) x[b * kPerByte + i] = decoded(codes[b], i);
  for (std::int64_t i = whole * kPerByte; i < n; ++i) x[i] = decoded(codes[whole], static_cast<int>(i % kPerByte));
}

}  // namespace

std::int64_t packed_bytes(const GroupCodec& codec, std::int64_t tokens, std::int64_t head_dim) {
  const bool across = codec.axis == GroupCodec::Axis::kToken;
  const std::int64_t longest = across ? head_dim : tokens, lines = across ? tokens : head_dim;
  if (longest == 0 || lines == 0) return 0;
  const std::int64_t size = codec.group > 0 ? std::min<std::int64_t>(codec.group, longest) : longest, rest = longest % size;
  return lines * (longest / size * group_bytes(codec, size) + (rest > 0 ? group_bytes(codec, rest) : 0));
}

void encode_group(const GroupCodec& codec, const float* x, std::int64_t n, std::uint8_t* packed) {
  choose_step(codec, x, n, packed);
  const Step step = step_of(codec, packed);
  std::uint8_t* const codes = packed + (codec.symmetric ? 2 : 4);
  std::memset(codes, 0, static_cast<std::size_t>((n * codec.bits + 7) / 8));
  const float inverse = step.scale > 0.0F ? 1.0F / step.scale : 0.0F;  // without extent codes are zero's
  const auto least = static_cast<float>(step.least), span = static_cast<float>(step.most - step.least);
  constexpr std::int64_t kPart = 64;  // a whole number of bytes for any bits
  std::int32_t part[kPart];
  for (std::int64_t first = 0; first < n; first += kPart) {
    const std::int64_t count = std::min(kPart, n - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const float number = x[first + i], value = std::isnan(number) ? step.zero : clamped(number);
      const float code = (value - step.zero) * inverse - least;  // 0 or more
      part[i] = static_cast<std::int32_t>(std::min(code + 0.5F, span));
    }
    put_codes(codec.bits, part, count, codes + first * codec.bits / 8);
  }
}

void decode_group(const GroupCodec& codec, const std::uint8_t* packed, std::int64_t n, float* x) {
  const Step step = step_of(codec, packed);
  const std::uint8_t* const codes = packed + (codec.symmetric ? 2 : 4);
  if (codec.bits == 1) return decode_bytes<1>(step, codes, n, x);
  if (codec.bits == 2) return decode_bytes<2>(step, codes, n, x);
  if (codec.bits == 4) return decode_bytes<4>(step, codes, n, x);
  if (codec.bits == 8) return decode_bytes<8>(step, codes, n, x);
  const std::uint32_t mask = (1U << codec.bits) - 1U;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t at = i * codec.bits;
    std::uint32_t bits = static_cast<std::uint32_t>(codes[at / 8]) >> (at % 8);
    if (at % 8 + codec.bits > 8) bits |= static_cast<std::uint32_t>(codes[at / 8 + 1]) << (8 - at % 8);
    x[i] = step.zero + step.scale * static_cast<float>(static_cast<std::int32_t>(bits & mask) + step.least);
  }
}

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
