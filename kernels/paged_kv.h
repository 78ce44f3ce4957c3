#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/element.h"

namespace kvlab {

// Pages of K and V of one (layer, KV head), in two pools. Page p begins at byte p * page_bytes(). D = head_dim, P = page_tokens, b = bits
// per code:
//
//   format         page of K                                         page of V                          P
//   f16, bf16      [P, D] numbers                                    [P, D] numbers                     power of 2, 16 or more
//   fp8            [P, D] e4m3; float scale per row                  as K                               power of 2, 16 or more
//   int8           [P, D] codes + 127 | [P] fp16 scale per token     as K                               power of 2, 16 or more
//   kivi4, kivi2   codes | [D] fp16 scale | [D] fp16 zero            codes | scales and zeros           64, 32 = one group of K
//   token4, token2 codes | scales and zeros                          as K                               64
//
// kivi: K per channel in groups of P tokens, V per token in groups of P channels (KIVI, Liu et al. 2024, arXiv:2402.02750). The newest
// `residual` to residual + P - 1 tokens stay in 16 bits. token: K and V per token in groups of D / 2 channels (MiKV, Yang et al. 2024,
// arXiv:2402.18096).
//
// Low-bit codes are in the order of tensor-core operands, in tiles of 16 tokens. Lane l = 4 g + t of a tile holds
//   K: token g, then token g + 8: channels t * D/4 .. (t + 1) * D/4 - 1
//   V: tokens 2t, 2t+1, then 2t+8, 2t+9: channels g * D/8 .. (g + 1) * D/8 - 1
// as words of two halves with 16 / b codes each, lowest bits first. Low, high half: even, odd channels of K; even, odd token of V. A lane's
// W = D b / 64 words of a tile: [W / w][32 lanes][w], w = min(W, 4). Scales and zeros per token and group: [tiles][groups][4]{scale 2t,
// 2t+1, 2t+8, 2t+9, zero 2t, 2t+1, 2t+8, 2t+9} for V, [tiles][groups][8]{scale g, g+8, zero g, g+8} for K.
enum class KvFormat : std::uint8_t { kF16, kBf16, kFp8, kInt8, kKivi4, kKivi2, kToken4, kToken2 };

constexpr std::string_view name_of(KvFormat format) {
  constexpr std::string_view kNames[] = {"f16", "bf16", "fp8", "int8", "kivi4", "kivi2", "token4", "token2"};
  return kNames[static_cast<int>(format)];
}
KVLAB_BOTH constexpr int bits_of(KvFormat format) {
  return format <= KvFormat::kBf16 ? 16 : format <= KvFormat::kInt8 ? 8 : format == KvFormat::kKivi4 || format == KvFormat::kToken4 ? 4 : 2;
}
KVLAB_BOTH constexpr bool is_kivi(KvFormat format) { return format == KvFormat::kKivi4 || format == KvFormat::kKivi2; }
// 0: not fixed.
KVLAB_BOTH constexpr std::int32_t fixed_page_tokens(KvFormat format) {
  return format < KvFormat::kKivi4 ? 0 : format == KvFormat::kKivi2 ? 32 : 64;
}
// Channels that share scale and zero.
KVLAB_BOTH constexpr std::int32_t group_channels(KvFormat format, std::int32_t head_dim) {
  return is_kivi(format) ? fixed_page_tokens(format) : head_dim / 2;
}
KVLAB_BOTH constexpr std::int64_t page_bytes(KvFormat format, std::int32_t head_dim, std::int32_t page_tokens) {
  const std::int64_t codes = std::int64_t{page_tokens} * head_dim * bits_of(format) / 8;
  if (format <= KvFormat::kFp8) return codes;
  if (format == KvFormat::kInt8) return codes + 2 * page_tokens;
  return codes + std::int64_t{page_tokens} * (head_dim / group_channels(format, head_dim)) * 4;
}
KVLAB_BOTH constexpr std::int32_t kivi_packed(KvFormat format, std::int32_t len, std::int32_t residual) {
  const std::int32_t page = fixed_page_tokens(format);
  return len < residual + page ? 0 : (len - residual) / page * page;
}
// Token i: slot i % capacity.
KVLAB_BOTH constexpr std::int32_t residual_capacity(KvFormat format, std::int32_t residual) { return residual + fixed_page_tokens(format); }

struct CodePlace {
  std::int32_t word, bit;
};
namespace layout {
KVLAB_BOTH constexpr CodePlace place(int bits, std::int32_t head_dim, std::int32_t tile, std::int32_t lane, std::int32_t second,
                                     std::int32_t code, std::int32_t half) {
  const std::int32_t words = head_dim * bits / 64, width = words < 4 ? words : 4, per_half = 16 / bits;
  const std::int32_t word = second * (words / 2) + code / per_half;
  return {tile * 32 * words + word / width * 32 * width + lane * width + word % width, 16 * half + bits * (code % per_half)};
}
}  // namespace layout
KVLAB_BOTH constexpr CodePlace k_code(int bits, std::int32_t head_dim, std::int32_t token, std::int32_t channel) {
  const std::int32_t quarter = head_dim / 4, t = channel / quarter, within = channel % quarter;
  return layout::place(bits, head_dim, token / 16, 4 * (token % 8) + t, token / 8 % 2, within / 2, within % 2);
}
KVLAB_BOTH constexpr CodePlace v_code(int bits, std::int32_t head_dim, std::int32_t token, std::int32_t channel) {
  const std::int32_t eighth = head_dim / 8, g = channel / eighth;
  return layout::place(bits, head_dim, token / 16, 4 * g + token % 8 / 2, token / 8 % 2, channel % eighth, token % 2);
}
// In fp16 numbers after the codes; the zero is 4 (V) or 2 (K) later.
KVLAB_BOTH constexpr std::int32_t v_scale_place(std::int32_t groups, std::int32_t token, std::int32_t group) {
  return ((token / 16 * groups + group) * 4 + token % 8 / 2) * 8 + token / 8 % 2 * 2 + token % 2;
}
KVLAB_BOTH constexpr std::int32_t k_scale_place(std::int32_t groups, std::int32_t token, std::int32_t group) {
  return ((token / 16 * groups + group) * 8 + token % 8) * 4 + token / 8 % 2;
}

// Cached K and V of a ragged batch in device memory. Rows and slots: KvRows.
struct PagedKv {
  KvFormat format = KvFormat::kBf16;
  ElementType type = ElementType::kBf16;  // new tokens and windows: f16 or bf16
  std::int32_t num_rows = 0, kv_heads = 1, head_dim = 0, page_tokens = 0;
  const std::int32_t* len = nullptr;         // [num_rows]
  const std::int32_t* page_begin = nullptr;  // [num_rows]
  const std::int32_t* page = nullptr;
  void* k = nullptr;  // aligned to 16 bytes
  void* v = nullptr;
  const float* k_scale = nullptr;  // [num_rows] fp8: factors of stored numbers; null: 1
  const float* v_scale = nullptr;
  // kivi: tokens from kivi_packed() on, in window `window[r]` (null: r).
  void* window_k = nullptr;  // [windows, residual_capacity(), head_dim] of `type`
  void* window_v = nullptr;
  const std::int32_t* window = nullptr;  // [num_rows]
  std::int32_t residual = 32;            // least tokens in a window; a multiple of 16
};

// Bytes that a read of `len` tokens moves, with scales and window.
std::int64_t row_bytes(const PagedKv& kv, std::int64_t len);

// A page in CPU memory. k, v [tokens, head_dim] are its first tokens; later ones do not change. kivi needs tokens = page_tokens. fp8
// numbers are divided by the scales.
struct HostPage {
  KvFormat format = KvFormat::kBf16;
  std::int32_t head_dim = 0, page_tokens = 0;
  std::uint8_t* k = nullptr;
  std::uint8_t* v = nullptr;
  float k_scale = 1, v_scale = 1;
};
void pack_page(const HostPage& page, const float* k, const float* v, std::int32_t tokens);
void unpack_page(const HostPage& page, std::int32_t tokens, float* k, float* v);

}  // namespace kvlab
