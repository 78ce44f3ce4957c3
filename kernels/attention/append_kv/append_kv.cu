#include "kernels/attention/append_kv/append_kv_args.cuh"

namespace kvlab {

namespace append {

namespace {

constexpr int kThreads = 256;

template <int Lanes>
__device__ __forceinline__ GroupRange over_lanes(GroupRange e) {
#pragma unroll
  for (int offset = 1; offset < Lanes; offset *= 2) {
    e.least = fminf(e.least, __shfl_xor_sync(kAllLanes, e.least, offset));
    e.most = fmaxf(e.most, __shfl_xor_sync(kAllLanes, e.most, offset));
  }
  return e;
}

__device__ __forceinline__ void put_vector(unsigned char* to, const std::uint32_t (&code)[8]) {
  const std::uint32_t low = code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24;
  *reinterpret_cast<uint2*>(to) = make_uint2(low, code[4] | code[5] << 8 | code[6] << 16 | code[7] << 24);
}

// 8 neighbouring channels of one token in codes of few bits. They lie in bytes or halves of words that no other token or lane writes.
template <int Bits, int D>
__device__ __forceinline__ void put_codes(unsigned char* page, bool keys, std::int32_t token, std::int32_t channel,
                                          const std::uint32_t (&code)[8]) {
  if (keys) {
    std::uint32_t even = 0, odd = 0;  // halves: channels, two at a time
#pragma unroll
    for (int i = 0; i < 4; ++i) even |= code[2 * i] << Bits * i, odd |= code[2 * i + 1] << Bits * i;
    const CodePlace at = k_code(Bits, D, token, channel);
    unsigned char* const to = page + 4 * at.word + at.bit / 8;
    if constexpr (Bits == 4) {
      *reinterpret_cast<std::uint32_t*>(to) = even | odd << 16;
    } else {
      to[0] = static_cast<unsigned char>(even), to[2] = static_cast<unsigned char>(odd);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i += 16 / Bits) {
    std::uint32_t half = 0;
#pragma unroll
    for (int j = 0; j < 16 / Bits; ++j) half |= code[i + j] << Bits * j;
    const CodePlace at = v_code(Bits, D, token, channel + i);
    *reinterpret_cast<std::uint16_t*>(page + 4 * at.word + at.bit / 8) = static_cast<std::uint16_t>(half);
  }
}

// A thread has 8 channels of one side of one token and head.
template <KvFormat Format, class T, int D>
__global__ void __launch_bounds__(kThreads) append_tokens(Args a, std::int64_t items) {
  constexpr int kLanes = D / 8;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool live = thread / kLanes < items;
  const std::int64_t item = live ? thread / kLanes : 0;  // others take part in shuffles
  const bool keys = item % 2 == 0;
  const std::int64_t token = item / 2 / a.kv.kv_heads;
  const auto head = static_cast<std::int32_t>(item / 2 % a.kv.kv_heads);
  const std::int32_t channel = static_cast<std::int32_t>(thread % kLanes) * 8;
  const NewTokens news = new_tokens(a, sequence_of(a, token));
  const std::int64_t row = static_cast<std::int64_t>(news.sequence) * a.kv.kv_heads + head;
  const std::int32_t i = a.kv.len[row] - news.count + static_cast<std::int32_t>(token - news.first);  // place in the row
  const std::int32_t in_page = i % a.kv.page_tokens;
  const T* const from = static_cast<const T*>(keys ? a.k : a.v) + token * a.token_stride + head * D + channel;
  const uint4 packed = *reinterpret_cast<const uint4*>(from);
  float x[8];
  unpack8<T>(packed, x);
  const std::int64_t number = live && i >= 0 ? a.kv.page[a.kv.page_begin[row] + i / a.kv.page_tokens] : -1;
  unsigned char* const page =
      number < 0 ? nullptr : static_cast<unsigned char*>(keys ? a.kv.k : a.kv.v) + number * page_bytes(Format, D, a.kv.page_tokens);
  if constexpr (Format <= KvFormat::kBf16) {
    if (page == nullptr) return;
    *reinterpret_cast<uint4*>(page + (static_cast<std::int64_t>(in_page) * D + channel) * 2) = packed;
    if (a.position != nullptr && keys && channel == 0) a.position[number * a.kv.page_tokens + in_page] = i;
  } else if constexpr (Format == KvFormat::kFp8) {
    const float* const scales = keys ? a.kv.k_scale : a.kv.v_scale;
    const float scale = scales != nullptr ? scales[row] : 1.0F;
    std::uint32_t code[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) code[c] = from_float<fp8>(x[c] / scale).bits;
    if (page != nullptr) put_vector(page + in_page * D + channel, code);
  } else {
    constexpr int kBits = bits_of(Format);
    GroupRange range;
#pragma unroll
    for (int c = 0; c < 8; ++c) range.take(x[c]);
    std::uint32_t code[8];
    if constexpr (Format == KvFormat::kInt8) {
      const GroupStep step = choose_step<true>(over_lanes<kLanes>(range), 8);
      const float top = top_code<true>(8);
#pragma unroll
      for (int c = 0; c < 8; ++c) code[c] = encode<true>(step, top, x[c]);
      if (page == nullptr) return;
      put_vector(page + in_page * D + channel, code);
      if (channel == 0)
        *reinterpret_cast<std::uint16_t*>(page + a.kv.page_tokens * D + 2 * in_page) = static_cast<std::uint16_t>(step.header);
    } else {
      constexpr int kGroup = group_channels(Format, D), kGroups = D / kGroup;
      const GroupStep step = choose_step<false>(over_lanes<kGroup / 8>(range), kBits);
      const float top = top_code<false>(kBits);
#pragma unroll
      for (int c = 0; c < 8; ++c) code[c] = encode<false>(step, top, x[c]);
      if (page == nullptr) return;
      put_codes<kBits, D>(page, keys, in_page, channel, code);
      if (channel % kGroup != 0) return;
      auto* const numbers = reinterpret_cast<std::uint16_t*>(page + a.kv.page_tokens * D * kBits / 8);
      const std::int32_t at = keys ? k_scale_place(kGroups, in_page, channel / kGroup) : v_scale_place(kGroups, in_page, channel / kGroup);
      numbers[at] = static_cast<std::uint16_t>(step.header >> 16), numbers[at + (keys ? 2 : 4)] = static_cast<std::uint16_t>(step.header);
    }
  }
}

template <KvFormat Format, class T, int D>
void run_tokens(const Args& a, std::int64_t tokens, CudaContext& cuda) {
  const std::int64_t items = tokens * a.kv.kv_heads * 2;
  const LaunchShape launch_shape{dim3(static_cast<unsigned>(ceil_div(items * (D / 8), kThreads))), dim3(kThreads)};
  launch("append_tokens", cuda, launch_shape, append_tokens<Format, T, D>, a, items);
}

template <class T, int D>
void run_format(const Args& a, std::int64_t tokens, CudaContext& cuda) {
  constexpr KvFormat kPlain = std::is_same_v<T, f16> ? KvFormat::kF16 : KvFormat::kBf16;
  if constexpr (D == 96)
    return run_tokens<kPlain, T, D>(a, tokens, cuda);
  else
    switch (a.kv.format) {
      case KvFormat::kFp8:
        return run_tokens<KvFormat::kFp8, T, D>(a, tokens, cuda);
      case KvFormat::kInt8:
        return run_tokens<KvFormat::kInt8, T, D>(a, tokens, cuda);
      case KvFormat::kToken4:
        return run_tokens<KvFormat::kToken4, T, D>(a, tokens, cuda);
      case KvFormat::kToken2:
        return run_tokens<KvFormat::kToken2, T, D>(a, tokens, cuda);
      default:
        return run_tokens<kPlain, T, D>(a, tokens, cuda);
    }
}

void refuse(const std::string& why) { throw CudaError("append_kv: " + why); }

void check(const AppendKv& a) {
  const PagedKv& kv = a.kv;
  const bool plain = kv.format <= KvFormat::kBf16;
  if (kv.kv_heads <= 0 || kv.num_rows % kv.kv_heads != 0) refuse("rows are not a multiple of KV heads");
  if (kv.head_dim != 64 && kv.head_dim != 128 && kv.head_dim != 256 && !(plain && kv.head_dim == 96))
    refuse("head_dim " + std::to_string(kv.head_dim) + " has no kernel: 64, 128, 256, and 96 in 16 bits, have");
  if (kv.type == ElementType::kF32) refuse("new tokens are f16 or bf16");
  if (plain && kv.type != (kv.format == KvFormat::kF16 ? ElementType::kF16 : ElementType::kBf16))
    refuse("a cache in 16 bits takes tokens of its own type");
  const std::int32_t fixed = fixed_page_tokens(kv.format);
  if (fixed > 0 ? kv.page_tokens != fixed : kv.page_tokens <= 0)
    refuse(std::to_string(kv.page_tokens) + " tokens per page in format " + std::string(name_of(kv.format)));
  if (a.position != nullptr && !plain) refuse("positions are written beside tokens in f16 and bf16 alone");
  if (a.token_stride % 8 != 0 || (a.token_stride != 0 && a.token_stride < std::int64_t{kv.kv_heads} * kv.head_dim))
    refuse("token_stride must be a multiple of 8 and hold a token");
}

}  // namespace

}  // namespace append

void run_cuda(const AppendKv& a, CudaContext& cuda) {
  if (a.tokens == 0 || a.kv.num_rows == 0) return;
  append::check(a);
  const std::int64_t stride = a.token_stride != 0 ? a.token_stride : std::int64_t{a.kv.kv_heads} * a.kv.head_dim;
  const append::Args args{a.kv, a.k, a.v, stride, a.first_token, a.kv.num_rows / a.kv.kv_heads, a.position};
  if (is_kivi(a.kv.format)) return append::run_kivi(args, a.most_new, cuda);
  for_type(a.kv.type, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (a.kv.head_dim == 64) append::run_format<T, 64>(args, a.tokens, cuda);
      if (a.kv.head_dim == 96) append::run_format<T, 96>(args, a.tokens, cuda);
      if (a.kv.head_dim == 128) append::run_format<T, 128>(args, a.tokens, cuda);
      if (a.kv.head_dim == 256) append::run_format<T, 256>(args, a.tokens, cuda);
    }
  });
}

}  // namespace kvlab
