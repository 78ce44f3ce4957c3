#include "kernels/attention/append_kv/append_kv_args.cuh"

namespace kvlab {

namespace append {

namespace {

constexpr int kThreads = 256;

template <int Lanes>
__device__ __forceinline__ GroupRange over_lanes(GroupRange e) {
#pragma unroll
  for (int offset = 1; offset < Lanes; offset *= 2) e.join_lane(offset);
  return e;
}

__device__ __forceinline__ void put_vector(unsigned char* to, const std::uint32_t (&code)[8]) {
  const std::uint32_t low = code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24;
  *reinterpret_cast<uint2*>(to) = make_uint2(low, code[4] | code[5] << 8 | code[6] << 16 | code[7] << 24);
}

// Codes of 8 channels of a token; no other lane writes these half-words.
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

struct Item {
  bool keys;
  std::int32_t channel, i, in_page;  // i: place in the row
  std::int64_t row, source;          // source: first new element
  std::int64_t number;               // of the page; -1: only takes part in shuffles

  template <int D>
  static __device__ __forceinline__ Item of_thread(const Args& a, std::int64_t items) {
    constexpr int kLanes = D / 8;
    const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const bool live = thread / kLanes < items;
    const std::int64_t item = live ? thread / kLanes : 0, token = item / 2 / a.kv.kv_heads;
    const auto head = static_cast<std::int32_t>(item / 2 % a.kv.kv_heads);
    const NewTokens news = new_tokens(a, sequence_of(a, token));
    Item x;
    x.keys = item % 2 == 0;
    x.channel = static_cast<std::int32_t>(thread % kLanes) * 8;
    x.row = static_cast<std::int64_t>(news.sequence) * a.kv.kv_heads + head;
    x.i = a.kv.len[x.row] - news.count + static_cast<std::int32_t>(token - news.first);
    x.in_page = x.i % a.kv.page_tokens;
    x.source = token * a.token_stride + head * D + x.channel;
    x.number = live && x.i >= 0 ? a.kv.page[a.kv.page_begin[x.row] + x.i / a.kv.page_tokens] : -1;
    return x;
  }
};

template <int D>
__device__ __forceinline__ void put_fp8(const Args& a, const Item& item, unsigned char* page, const float (&x)[8]) {
  const float* const scales = item.keys ? a.kv.k_scale : a.kv.v_scale;
  const float scale = scales != nullptr ? scales[item.row] : 1.0F;
  std::uint32_t code[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) code[c] = from_float<fp8>(x[c] / scale).bits;
  if (page != nullptr) put_vector(page + item.in_page * D + item.channel, code);
}

template <int Bits, int kGroup, bool Symmetric>
__device__ __forceinline__ GroupStep encode_group(const float (&x)[8], std::uint32_t (&code)[8]) {
  GroupRange range;
#pragma unroll
  for (int c = 0; c < 8; ++c) range.take(x[c]);
  const GroupStep step = choose_step<Symmetric>(over_lanes<kGroup / 8>(range), Bits);
  const float top = top_code<Symmetric>(Bits);
#pragma unroll
  for (int c = 0; c < 8; ++c) code[c] = encode<Symmetric>(step, top, x[c]);
  return step;
}

template <int D>
__device__ __forceinline__ void put_int8(const Args& a, const Item& item, unsigned char* page, const float (&x)[8]) {
  std::uint32_t code[8];
  const GroupStep step = encode_group<8, D, true>(x, code);
  if (page == nullptr) return;
  put_vector(page + item.in_page * D + item.channel, code);
  if (item.channel == 0)
    *reinterpret_cast<std::uint16_t*>(page + a.kv.page_tokens * D + 2 * item.in_page) = static_cast<std::uint16_t>(step.header);
}

template <KvFormat Format, int D>
__device__ __forceinline__ void put_token_codes(const Args& a, const Item& item, unsigned char* page, const float (&x)[8]) {
  constexpr int kBits = bits_of(Format), kGroup = group_channels(Format, D), kGroups = D / kGroup;
  std::uint32_t code[8];
  const GroupStep step = encode_group<kBits, kGroup, false>(x, code);
  if (page == nullptr) return;
  put_codes<kBits, D>(page, item.keys, item.in_page, item.channel, code);
  if (item.channel % kGroup != 0) return;
  auto* const numbers = reinterpret_cast<std::uint16_t*>(page + a.kv.page_tokens * D * kBits / 8);
  const std::int32_t group = item.channel / kGroup;
  const std::int32_t at = item.keys ? k_scale_place(kGroups, item.in_page, group) : v_scale_place(kGroups, item.in_page, group);
  numbers[at] = static_cast<std::uint16_t>(step.header >> 16), numbers[at + (item.keys ? 2 : 4)] = static_cast<std::uint16_t>(step.header);
}

template <KvFormat Format, class T, int D>
__global__ void __launch_bounds__(kThreads) append_tokens(Args a, std::int64_t items) {
  const Item item = Item::of_thread<D>(a, items);
  const uint4 packed = *reinterpret_cast<const uint4*>(static_cast<const T*>(item.keys ? a.k : a.v) + item.source);
  unsigned char* page = nullptr;
  if (item.number >= 0)
    page = static_cast<unsigned char*>(item.keys ? a.kv.k : a.kv.v) + item.number * page_bytes(Format, D, a.kv.page_tokens);
  if constexpr (Format <= KvFormat::kBf16) {
    if (page == nullptr) return;
    *reinterpret_cast<uint4*>(page + (static_cast<std::int64_t>(item.in_page) * D + item.channel) * 2) = packed;
    if (a.position != nullptr && item.keys && item.channel == 0) a.position[item.number * a.kv.page_tokens + item.in_page] = item.i;
  } else {
    float x[8];
    unpack8<T>(packed, x);
    if constexpr (Format == KvFormat::kFp8)
      put_fp8<D>(a, item, page, x);
    else if constexpr (Format == KvFormat::kInt8)
      put_int8<D>(a, item, page, x);
    else
      put_token_codes<Format, D>(a, item, page, x);
  }
}

template <KvFormat Format, class T, int D>
void run_tokens(const Args& a, std::int64_t tokens, CudaContext& cuda) {
  const std::int64_t items = tokens * a.kv.kv_heads * 2;
  launch("append_tokens", cuda, blocks_of(ceil_div(items * (D / 8), kThreads), kThreads), append_tokens<Format, T, D>, a, items);
}

template <class T>
void run_type(const Args& a, std::int64_t tokens, CudaContext& cuda) {
  using enum KvFormat;
  constexpr KvFormat kPlain = std::is_same_v<T, f16> ? kF16 : kBf16;
  if (a.kv.head_dim == 96) return run_tokens<kPlain, T, 96>(a, tokens, cuda);
  for_value<64, 128, 256>(a.kv.head_dim, [&](auto d) {
    for_value<kPlain, kFp8, kInt8, kToken4, kToken2>(
        a.kv.format, [&](auto format) { run_tokens<decltype(format)::value, T, decltype(d)::value>(a, tokens, cuda); });
  });
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
  if (a.kv.type == ElementType::kF16)
    append::run_type<f16>(args, a.tokens, cuda);
  else
    append::run_type<bf16>(args, a.tokens, cuda);
}

}  // namespace kvlab
