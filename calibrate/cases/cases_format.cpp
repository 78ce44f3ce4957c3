// Token storage: quantize, compact, evict in place.
#include <algorithm>
#include <cmath>

#include "calibrate/cases/kernel_case.h"
#include "calibrate/cases/op_case.h"
#include "kernels/storage/compact/compact.h"
#include "kernels/storage/evict_rows_op.h"
#include "kernels/storage/quantize/quantize.h"

namespace kvlab {

namespace {

bool compact_matches(TimedDevice& device, const CompactRows& a, const Run& run) {
  const std::int64_t d = a.kv.head_dim;
  const std::vector<std::int64_t> rows = sampled(a.kv.num_rows, 3);
  std::vector<std::vector<float>> keys, values;
  for (const std::int64_t r : rows) {
    keys.push_back(row_vectors(device, a.kv, r, false));
    values.push_back(row_vectors(device, a.kv, r, true));
  }
  run();
  for (std::size_t at = 0; at < rows.size(); ++at) {
    const std::int64_t r = rows[at], n = a.index_first[r + 1] - a.index_first[r];
    const std::vector<std::int32_t> index = read_values(device, a.index + a.index_first[r], n);
    const std::vector<float> k = row_vectors(device, a.kv, r, false), v = row_vectors(device, a.kv, r, true);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto from = static_cast<std::size_t>(nth(index, i) * d);
      if (!std::equal(&nth(k, i * d), &nth(k, i * d) + d, &keys[at][from])) return false;
      if (!std::equal(&nth(v, i * d), &nth(v, i * d) + d, &values[at][from])) return false;
    }
  }
  return true;
}

// Over whole rows, with CPU shapes.
const PolicyShapes kRowShapes{{{1, 4096, 2, 64}, {16, 2048, 2, 64}}, {{2, 21, 2, 16}}, {{1, 8192, 8, 128}, {64, 4096, 8, 128}}};

// Keeps every other token.
void add_compact(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    CompactRows a;
    a.kv = paged_rows(b, rows_spec(s));
    const std::int64_t keep = s.at("len") / 2;
    std::vector<std::int32_t> index;
    for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
      for (std::int64_t i = 0; i < keep; ++i) index.push_back(static_cast<std::int32_t>(2 * i + 1));
    a.index_first = equal_rows(b, a.kv.num_rows, keep), a.index = b.put(index);
    return a;
  };
  add_policy_families<CompactRows>(name_of(OpId::kCompact), kRowAxes, kRowShapes, build, compact_matches, families);
}

// The last token replaced the one of lowest score (the latest among equals).
bool evict_matches(TimedDevice& device, const EvictRows& a, const Run& run) {
  const std::vector<std::int64_t> rows = sampled(a.kv.num_rows, 3);
  std::vector<std::vector<float>> keys;
  for (const std::int64_t r : rows) keys.push_back(row_vectors(device, a.kv, r, false));
  run();
  const std::int64_t d = a.kv.head_dim;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    const std::int64_t r = rows[at], n = a.kv.len[r];
    const std::vector<float> scores = read_floats(device, a.scores + a.kv.first[r], n);
    std::int64_t lowest = n - 1;
    for (std::int64_t i = n - 1; i >= 0; --i)
      if (nth(scores, i) < nth(scores, lowest)) lowest = i;
    if (read_values(device, a.dropped + a.first[r], 1).front() != lowest) return false;
    std::vector<float>& expected = keys[at];
    std::copy_n(expected.end() - d, d, expected.begin() + lowest * d);
    if (row_vectors(device, a.kv, r, false) != expected) return false;
  }
  return true;
}

void add_evict(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    EvictRows a;
    a.kv = paged_rows(b, rows_spec(s));
    a.first = equal_rows(b, a.kv.num_rows, 1), a.scores = b.floats(a.kv.total());
    a.dropped = b.room<std::int32_t>(a.kv.num_rows);
    return a;
  };
  add_policy_families<EvictRows>(name_of(OpId::kEvict), kRowAxes, kRowShapes, build, evict_matches, families);
}

const Axes kCodecAxes{{"batch", "b"}, {"len", "n"}, {"kv_heads", "kv"}, {"head_dim", "d"}, {"bits", "i"}, {"group", "g"}};
const PolicyShapes kCodecShapes{{{8, 2048, 2, 64, 4, 32}, {8, 2048, 2, 64, 2, 32}},
                                {{2, 33, 2, 32, 4, 32}, {1, 64, 2, 32, 2, 32}},
                                {{64, 4096, 8, 128, 4, 64}, {64, 4096, 8, 128, 2, 32}, {64, 4096, 8, 128, 8, 128}}};

GroupCodec codec_of(const Shape& s) {
  return {GroupCodec::Axis::kToken, static_cast<std::int32_t>(s.at("bits")), static_cast<std::int32_t>(s.at("group")), false};
}

// Within one step of its group.
bool within_a_step(const GroupCodec& codec, const std::vector<float>& original, const std::vector<float>& decoded, std::int64_t d) {
  const std::int64_t group = codec.group > 0 ? std::min<std::int64_t>(codec.group, d) : d;
  for (std::size_t begin = 0; begin < original.size(); begin += static_cast<std::size_t>(group)) {
    const auto [low, high] = std::minmax_element(&original[begin], &original[begin] + group);
    const float step = (*high - *low) / static_cast<float>((1 << codec.bits) - 1);
    for (std::size_t i = begin; i < begin + static_cast<std::size_t>(group); ++i)
      if (!(std::abs(original[i] - decoded[i]) <= 1.02F * step + 0.02F)) return false;
  }
  return true;
}

bool quantize_matches(TimedDevice& device, const Quantize& a, const Run& run) {
  run();
  const std::int64_t d = a.tokens.kv.head_dim;
  std::int64_t at = 0, next_row = 0;
  const std::vector<std::uint8_t> packed = read_values(device, a.packed, packed_bytes(a.tokens, a.codec));
  for (const std::int64_t r : sampled(a.tokens.kv.num_rows, 3)) {
    for (; next_row < r; ++next_row) at += packed_bytes(a.codec, a.tokens.entries(static_cast<std::int32_t>(next_row)), d);
    const std::vector<float> original = row_vectors(device, a.tokens.kv, r, false);
    std::vector<float> decoded(original.size());
    for_each_group(a.codec, a.tokens.kv.len[r], static_cast<std::int32_t>(d),
                   [&](std::int32_t t, std::int32_t, std::int32_t c, std::int32_t width, std::int64_t byte) {
                     decode_group(a.codec, packed.data() + at + byte, width, &nth(decoded, t * d + c));
                   });
    if (!within_a_step(a.codec, original, decoded, d)) return false;
  }
  return true;
}

void add_quantize(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    Quantize a;
    a.tokens = all_tokens(b, s), a.codec = codec_of(s);
    a.packed = b.room<std::uint8_t>(packed_bytes(a.tokens, a.codec));
    return a;
  };
  add_policy_families<Quantize>(name_of(OpId::kQuantize), kCodecAxes, kCodecShapes, build, quantize_matches, families);
}

std::vector<std::uint8_t> patterned(const ListedTokens& tokens, const GroupCodec& codec) {
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(packed_bytes(tokens, codec)));
  std::int64_t row = 0;
  std::vector<float> x;
  for (std::int32_t r = 0; r < tokens.kv.num_rows; ++r) {
    for_each_group(codec, tokens.entries(r), tokens.kv.head_dim,
                   [&](std::int32_t, std::int32_t, std::int32_t, std::int32_t width, std::int64_t at) {
                     x.resize(static_cast<std::size_t>(width));
                     for (std::size_t i = 0; i < x.size(); ++i)
                       x[i] = 1.0F + 0.25F * static_cast<float>(i % (std::size_t{1} << codec.bits));
                     encode_group(codec, x.data(), width, packed.data() + row + at);
                   });
    row += packed_bytes(codec, tokens.entries(r), tokens.kv.head_dim);
  }
  return packed;
}

bool dequantize_matches(TimedDevice& device, const Quantize& a, const Run& run) {
  run();
  const std::int64_t d = a.tokens.kv.head_dim, group = a.codec.group > 0 ? std::min<std::int64_t>(a.codec.group, d) : d;
  RelativeError error;
  for (const std::int64_t r : sampled(a.tokens.kv.num_rows, 3)) {
    const std::vector<float> out = row_vectors(device, a.tokens.kv, r, false);
    for (std::size_t i = 0; i < out.size(); ++i)
      error.add(out[i], 1.0 + 0.25 * static_cast<double>(static_cast<std::int64_t>(i) % d % group % (std::int64_t{1} << a.codec.bits)));
  }
  return error.below(tolerance_of(ElementType::kBf16));
}

void add_dequantize(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    Quantize a;
    a.tokens = all_tokens(b, s), a.codec = codec_of(s), a.mode = Quantize::Mode::kWrite;
    a.packed = b.put(patterned(a.tokens, a.codec));
    return a;
  };
  add_policy_families<Quantize>(name_of(OpId::kDequantize), kCodecAxes, kCodecShapes, build, dequantize_matches, families);
}

}  // namespace

void add_format_cases(std::vector<KernelFamily>& families) {
  add_compact(families);
  add_evict(families);
  add_quantize(families);
  add_dequantize(families);
}

}  // namespace kvlab
