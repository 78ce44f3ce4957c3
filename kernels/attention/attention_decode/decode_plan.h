#pragma once

#include <algorithm>

#include "kernels/attention/attention_decode/attention_decode_cuda.h"

namespace kvlab::decode {

constexpr int kMostGroup = 16;
constexpr int kMostSplits = 128;

// Per stage: 16 tokens, or a page of codes; K and V.
constexpr std::int32_t unit_tokens(KvFormat format) { return std::max(16, fixed_page_tokens(format)); }
// Stages begin on multiples of 128 bytes.
constexpr std::int64_t unit_bytes(KvFormat format, std::int32_t head_dim) {
  return (2 * page_bytes(format, head_dim, unit_tokens(format)) + 127) / 128 * 128;
}

// By registers: more than 8 query heads leave room for fewer.
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
