#include "kernels/attention/append_kv/append_kv_args.cuh"

namespace kvlab::append {

namespace {

constexpr int kThreads = 256;

// kBoth: a block encodes a page, then writes its tokens' window. Else two launches.
enum class Work : std::uint8_t { kBoth, kEncode, kWindow };

struct Side {
  bool keys;
  std::int64_t row;
  std::int32_t head, len, packed_before, packed;  // tokens
  NewTokens news;
  std::uint16_t* window;
  const std::uint16_t* fresh;  // of the sequence and head
};

template <KvFormat Format, int D>
__device__ __forceinline__ Side side_of(const Args& a, std::int64_t index) {
  Side s;
  s.keys = index % 2 == 0, s.row = index / 2;
  s.head = static_cast<std::int32_t>(s.row % a.kv.kv_heads);
  s.news = new_tokens(a, static_cast<std::int32_t>(s.row / a.kv.kv_heads));
  s.len = a.kv.len[s.row];
  s.packed_before = kivi_packed(Format, s.len - s.news.count, a.kv.residual), s.packed = kivi_packed(Format, s.len, a.kv.residual);
  const std::int64_t window = a.kv.window != nullptr ? a.kv.window[s.row] : s.row;
  s.window = static_cast<std::uint16_t*>(s.keys ? a.kv.window_k : a.kv.window_v) + window * residual_capacity(Format, a.kv.residual) * D;
  s.fresh = static_cast<const std::uint16_t*>(s.keys ? a.k : a.v) + s.news.first * a.token_stride + s.head * D;
  return s;
}

// New, or in the window; 16 bits.
template <KvFormat Format, int D>
__device__ __forceinline__ const std::uint16_t* token_at(const Args& a, const Side& s, std::int32_t i) {
  const std::int32_t old = s.len - s.news.count;
  return i >= old ? s.fresh + (i - old) * a.token_stride : s.window + i % residual_capacity(Format, a.kv.residual) * D;
}

// x [P][D + 2], padded against bank conflicts.
template <KvFormat Format, class T, int D>
__device__ __forceinline__ void encode_page(const std::uint16_t* x, GroupStep* steps, bool keys, unsigned char* page) {
  constexpr int kTokens = fixed_page_tokens(Format), kBits = bits_of(Format), kGroup = group_channels(Format, D), kGroups = D / kGroup;
  constexpr int kRow = D + 2;
  const auto number = [&](int token, int channel) { return to_float(T{x[token * kRow + channel]}); };
  auto* const numbers = reinterpret_cast<std::uint16_t*>(page + kTokens * D * kBits / 8);
  for (int i = threadIdx.x; i < D; i += kThreads) {  // D groups: channels of K; tokens, groups of channels of V
    GroupRange range;
    if (keys) {
      for (int token = 0; token < kTokens; ++token) range.take(number(token, i));
    } else {
      for (int c = 0; c < kGroup; ++c) range.take(number(i % kTokens, i / kTokens * kGroup + c));
    }
    const GroupStep step = choose_step<false>(range, kBits);
    const std::int32_t at = keys ? i : v_scale_place(kGroups, i % kTokens, i / kTokens);
    numbers[at] = static_cast<std::uint16_t>(step.header >> 16), numbers[at + (keys ? D : 4)] = static_cast<std::uint16_t>(step.header);
    steps[i] = step;
  }
  __syncthreads();
  constexpr int kWords = D * kBits / 64, kWidth = kWords < 4 ? kWords : 4, kPerHalf = 16 / kBits;
  for (int w = threadIdx.x; w < kTokens * D * kBits / 32; w += kThreads) {  // the inverse of layout::place()
    const int tile = w / (32 * kWords), in_tile = w % (32 * kWords), lane = in_tile % (32 * kWidth) / kWidth;
    const int word = in_tile / (32 * kWidth) * kWidth + in_tile % kWidth, second = word / (kWords / 2),
              code = word % (kWords / 2) * kPerHalf;
    std::uint32_t packed = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < kPerHalf; ++i) {
        const int token = 16 * tile + 8 * second + (keys ? lane / 4 : 2 * (lane % 4) + half);
        const int channel = keys ? lane % 4 * (D / 4) + 2 * (code + i) + half : lane / 4 * (D / 8) + code + i;
        const GroupStep& step = steps[keys ? channel : channel / kGroup * kTokens + token];
        packed |= encode<false>(step, top_code<false>(kBits), number(token, channel)) << (16 * half + kBits * i);
      }
    reinterpret_cast<std::uint32_t*>(page)[w] = packed;
  }
}

// Blocks: [rows, pages, 2 sides] of pages that become whole.
template <KvFormat Format, class T, int D>
__global__ void __launch_bounds__(kThreads) append_kivi(Args a, std::int32_t pages, Work work) {
  constexpr int kTokens = fixed_page_tokens(Format);
  KVLAB_SHARED(GroupStep, steps, D);
  KVLAB_SHARED(std::uint32_t, words, kTokens * (D + 2) / 2);
  auto* const x = reinterpret_cast<std::uint16_t*>(words);
  const std::int64_t block = blockIdx.x;
  const Side s = side_of<Format, D>(a, block / (2 * pages) * 2 + block % 2);
  const std::int32_t first = s.packed_before + static_cast<std::int32_t>(block / 2 % pages) * kTokens;
  if (work != Work::kWindow && first < s.packed) {
    for (int i = threadIdx.x; i < kTokens * D / 2; i += kThreads) {
      const int token = i / (D / 2), channel = i % (D / 2) * 2;
      *reinterpret_cast<std::uint32_t*>(x + token * (D + 2) + channel) =
          *reinterpret_cast<const std::uint32_t*>(token_at<Format, D>(a, s, first + token) + channel);
    }
    __syncthreads();
    const std::int64_t page = a.kv.page[a.kv.page_begin[s.row] + first / kTokens];
    encode_page<Format, T, D>(x, steps, s.keys,
                              static_cast<unsigned char*>(s.keys ? a.kv.k : a.kv.v) + page * page_bytes(Format, D, kTokens));
  }
  if (work == Work::kEncode) return;
  const std::int32_t old = s.len - s.news.count, begin = max(max(s.packed, old), 0);
  for (std::int32_t i = threadIdx.x; i < (s.len - begin) * (D / 8); i += kThreads) {
    const std::int32_t token = begin + i / (D / 8), channel = i % (D / 8) * 8;
    *reinterpret_cast<uint4*>(s.window + token % residual_capacity(Format, a.kv.residual) * D + channel) =
        *reinterpret_cast<const uint4*>(s.fresh + (token - old) * a.token_stride + channel);
  }
}

template <KvFormat Format, class T>
void run_as(const Args& a, std::int32_t most_new, CudaContext& cuda) {
  constexpr std::int32_t kTokens = fixed_page_tokens(Format);
  const auto run = [&](std::int32_t pages, Work work) {
    for_value<64, 128, 256>(a.kv.head_dim, [&](auto d) {
      launch("append_kivi", cuda, blocks_of(2 * a.kv.num_rows * pages, kThreads), append_kivi<Format, T, decltype(d)::value>, a, pages,
             work);
    });
  };
  if (most_new <= kTokens) return run(1, Work::kBoth);
  run(ceil_div(most_new, kTokens), Work::kEncode);
  run(1, Work::kWindow);
}

}  // namespace

void run_kivi(const Args& a, std::int32_t most_new, CudaContext& cuda) {
  for_value<KvFormat::kKivi4, KvFormat::kKivi2>(a.kv.format, [&](auto format) {
    constexpr KvFormat kFormat = decltype(format)::value;
    a.kv.type == ElementType::kF16 ? run_as<kFormat, f16>(a, most_new, cuda) : run_as<kFormat, bf16>(a, most_new, cuda);
  });
}

}  // namespace kvlab::append
