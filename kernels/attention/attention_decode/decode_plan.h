#pragma once

#include <algorithm>

#include "kernels/attention/attention_decode/attention_decode.h"

namespace kvlab::decode {

constexpr int kMostGroup = 16;
constexpr int kMostSplits = 128;

// By head_dim 64 or 96, 128, 256; the first that fits shared memory.
inline constexpr DecodeTuning kPlain64[] = {{4, 4, 3}, {2, 2, 1}}, kPlain256[] = {{4, 3, 1}, {2, 2, 1}};
inline constexpr DecodeTuning kPlain128[] = {{4, 3, 2}, {4, 2, 3}, {8, 3, 1}, {2, 4, 3}, {4, 0, 3}, {2, 2, 1}};
inline constexpr DecodeTuning kBytes64[] = {{4, 4, 3}}, kBytes128[] = {{4, 4, 3}, {8, 3, 2}, {4, 2, 4}},
                              kBytes256[] = {{4, 3, 2}, {2, 3, 2}};
inline constexpr DecodeTuning kKivi4By64[] = {{4, 4, 3}, {2, 4, 3}}, kKivi4By128[] = {{4, 2, 3}, {4, 3, 2}, {2, 2, 3}};
inline constexpr DecodeTuning kKivi4By256[] = {{4, 3, 1}, {1, 3, 1}};
inline constexpr DecodeTuning kKivi2By64[] = {{4, 6, 3}}, kKivi2By128[] = {{4, 6, 3}, {2, 6, 3}}, kKivi2By256[] = {{4, 6, 1}, {1, 6, 1}};
inline constexpr DecodeTuning kToken64[] = {{4, 4, 3}, {2, 2, 3}}, kToken128[] = {{4, 2, 3}, {2, 2, 3}},
                              kToken256[] = {{4, 3, 1}, {1, 3, 1}};
constexpr std::span<const DecodeTuning> tunings(KvFormat format, std::int32_t head_dim) {
  using Table = std::span<const DecodeTuning>;
  const auto of = [head_dim](Table narrow, Table middle, Table wide) { return head_dim < 128 ? narrow : head_dim == 128 ? middle : wide; };
  if (format <= KvFormat::kBf16) return of(kPlain64, kPlain128, kPlain256);
  if (format <= KvFormat::kInt8) return of(kBytes64, kBytes128, kBytes256);
  if (format == KvFormat::kKivi4) return of(kKivi4By64, kKivi4By128, kKivi4By256);
  if (format == KvFormat::kKivi2) return of(kKivi2By64, kKivi2By128, kKivi2By256);
  return of(kToken64, kToken128, kToken256);
}

// Per stage: 16 tokens, or a page of codes; K and V.
constexpr std::int32_t unit_tokens(KvFormat format) { return std::max(16, fixed_page_tokens(format)); }
// Stages begin on multiples of 128 bytes.
constexpr std::int64_t unit_bytes(KvFormat format, std::int32_t head_dim) {
  return (2 * page_bytes(format, head_dim, unit_tokens(format)) + 127) / 128 * 128;
}

// By registers.
constexpr int blocks_for(int blocks, std::int32_t group) { return group <= 8 || blocks == 1 ? blocks : blocks - 1; }

// To add up warps, then a row's blocks.
constexpr std::int64_t finish_bytes(int warps, std::int32_t group, std::int32_t head_dim) {
  const std::int64_t heads = group > 8 ? 16 : 8;
  return std::max<std::int64_t>(4 * (heads * (2 * warps + 2) + warps * heads * (head_dim + 4)), 4 * (kMostSplits * kMostGroup + 4));
}
constexpr std::int64_t shared_bytes(const DecodeTuning& t, KvFormat format, std::int32_t group, std::int32_t head_dim) {
  return std::max(t.warps * t.stages * unit_bytes(format, head_dim), finish_bytes(t.warps, group, head_dim));
}

}  // namespace kvlab::decode
