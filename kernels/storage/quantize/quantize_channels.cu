#include "kernels/storage/quantize/channel_units.cuh"

namespace kvlab {

namespace {

// For two channels.
template <class T>
struct UnitNumbers {
  PairOf<T> x[kUnitTokens];
  GroupRange range[2];
  int present = 0;

  __device__ __forceinline__ void load(const CodecArgs& a, const std::int32_t* slots, int channel) {
    const T* const data = static_cast<const T*>(a.list.data) + channel;
#pragma unroll
    for (int i = 0; i < kUnitTokens; ++i) {
      x[i] = PairOf<T>::nan();
      if (slots[i] < 0) continue;
      x[i] = *reinterpret_cast<const PairOf<T>*>(data + std::int64_t{slots[i]} * a.list.rows.head_dim);
      ++present;
    }
    PairOf<T> least = PairOf<T>::nan(), most = PairOf<T>::nan();
#pragma unroll
    for (int i = 0; i < kUnitTokens; ++i) least = least.least(x[i]), most = most.most(x[i]);
    range[0].least = fminf(range[0].least, least.value().x), range[1].least = fminf(range[1].least, least.value().y);
    range[0].most = fmaxf(range[0].most, most.value().x), range[1].most = fmaxf(range[1].most, most.value().y);
  }
};

// Codes of a channel: `tokens` have room, `present` are there.
template <int Bits, bool Symmetric, class F>
__device__ __forceinline__ void put_codes(const GroupStep& s, float top, int bits, int tokens, int present, std::uint8_t* p, F&& x) {
  const int align = common_alignment(reinterpret_cast<std::uintptr_t>(p) | static_cast<unsigned>(bits));
#pragma unroll
  for (int j = 0; j < kUnitTokens / 8; ++j) {
    const int room = min(8, tokens - 8 * j), there = min(8, present - 8 * j);
    if (room <= 0) break;
    unsigned long long codes = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) add_code<Bits>(codes, encode<Symmetric>(s, top, x(8 * j + i)), bits, i);
    if (there < 8) codes &= there <= 0 ? 0ULL : (1ULL << there * bits) - 1;
    if (room == 8)
      put_bytes(p + j * bits, codes, bits, align);
    else
      put_bytes(p + j * bits, codes, (room * bits + 7) / 8, 1);
  }
}

// ranges [num_rows, units, head_dim], for groups longer than a block's tokens.
template <class T>
__global__ void __launch_bounds__(kPairs* kUnits) channel_ranges(CodecArgs a, UnitCut cut, float2* ranges) {
  KVLAB_SHARED(std::int32_t, slots, kUnits * kUnitTokens);
  const UnitThread me(a, cut);
  look_up(a, cut, me, slots);
  __syncthreads();
  if (!me.active) return;
  UnitNumbers<T> numbers;
  numbers.load(a, slots + me.slice * kUnitTokens, me.channel);
  float2* const out = ranges + (std::int64_t{me.row} * cut.units + me.number) * a.list.rows.head_dim + me.channel;
  for (int c = 0; c < 2; ++c) out[c] = make_float2(numbers.range[c].least, numbers.range[c].most);
}

// Into the group's first unit.
__global__ void __launch_bounds__(256) merge_ranges(CodecArgs a, UnitCut cut, float2* ranges, int groups) {
  const std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x, d = a.list.rows.head_dim;
  if (i >= std::int64_t{a.list.rows.num_rows} * groups * d) return;
  float2* const first = ranges + (i / d / groups * cut.units + i / d % groups * cut.per_group) * d + i % d;
  float2 all = first[0];
  for (int u = 1; u < cut.per_group; ++u) all.x = fminf(all.x, first[u * d].x), all.y = fmaxf(all.y, first[u * d].y);
  first[0] = all;
}

// Joins a group's ranges in `exchange`; `of`: the thread's unit.
__device__ __forceinline__ void join_units(const UnitCut& cut, int of, const float4* exchange, GroupRange (&range)[2]) {
  for (int u = 0; u < cut.per_group; ++u) {
    const float4 other = exchange[threadIdx.x + (u - of) * cut.pairs];
    range[0].join(other.x, other.y), range[1].join(other.z, other.w);
  }
}

// kStaged: groups fit a block, with bytes in shared memory; else ranges are given.
template <class T, int Bits, bool Symmetric, bool kStaged>
__global__ void __launch_bounds__(kPairs* kUnits, 2) quantize_units(CodecArgs a, UnitCut cut, const float2* ranges, int room) {
  KVLAB_SHARED(std::int32_t, slots, kUnits * kUnitTokens);
  KVLAB_SHARED(float4, exchange, kPairs * kUnits);
  KVLAB_DYNAMIC_SHARED(std::uint8_t, stage);
  const UnitThread me(a, cut);
  const int bits = Bits != 0 ? Bits : a.bits;
  look_up(a, cut, me, slots);
  __syncthreads();
  UnitNumbers<T> numbers;
  if (me.active) numbers.load(a, slots + me.slice * kUnitTokens, me.channel);
  GroupRange range[2] = {numbers.range[0], numbers.range[1]};
  if constexpr (kStaged) {
    exchange[threadIdx.x] = make_float4(range[0].least, range[0].most, range[1].least, range[1].most);
    __syncthreads();
  }
  // Saves registers while numbers are loaded.
  const Unit unit = unit_at(a, cut, me.row, me.number);
  if constexpr (kStaged) {
    join_units(cut, unit.of, exchange, range);
  } else if (me.active && unit.tokens > 0) {
    const float2* in = ranges + (std::int64_t{me.row} * cut.units + me.number - unit.of) * a.list.rows.head_dim + me.channel;
    for (int c = 0; c < 2; ++c) range[c].least = in[c].x, range[c].most = in[c].y;
  }
  if (me.active && unit.tokens > 0) {
    const float top = top_code<Symmetric>(bits);
    std::uint8_t* p = kStaged
                          ? segment(a, cut, me, me.slice, stage, room).shared + (me.channel - me.chunk * 2 * kPairs) * unit.channel_bytes
                          : a.packed + a.base[me.row] + unit.group_at + me.channel * unit.channel_bytes;
    const GroupStep low = choose_step<Symmetric>(range[0], bits), high = choose_step<Symmetric>(range[1], bits);
    const int skip = a.header + unit.of * (kUnitTokens / 8) * bits;
    if (unit.of == 0) put_bytes(p, low.header, a.header, common_alignment(reinterpret_cast<std::uintptr_t>(p)));
    put_codes<Bits, Symmetric>(low, top, bits, unit.tokens, numbers.present, p + skip, [&](int i) { return numbers.x[i].value().x; });
    p += unit.channel_bytes;
    if (unit.of == 0) put_bytes(p, high.header, a.header, common_alignment(reinterpret_cast<std::uintptr_t>(p)));
    put_codes<Bits, Symmetric>(high, top, bits, unit.tokens, numbers.present, p + skip, [&](int i) { return numbers.x[i].value().y; });
  }
  if constexpr (kStaged) {
    __syncthreads();
    for (int slice = 0; slice < kUnits; slice += cut.per_group) move_segment<false>(segment(a, cut, me, slice, stage, room));
  }
}

template <class T, bool kStaged>
void launch_units(const CodecArgs& a, const UnitCut& cut, const float2* ranges, CudaContext& cuda) {
  const std::int64_t room = kStaged ? segment_room(a, cut) : 0;
  for_code<sizeof(T) == 2 && kStaged>(a, [&](auto bits, auto symmetric) {
    launch("quantize_units", cuda, unit_blocks(a, cut, room), quantize_units<T, decltype(bits)::value, decltype(symmetric)::value, kStaged>,
           a, cut, ranges, static_cast<int>(room));
  });
}

template <class T>
void quantize(const CodecArgs& a, const UnitCut& cut, CudaContext& cuda) {
  if (in_one_block(cut)) return launch_units<T, true>(a, cut, nullptr, cuda);
  const std::int64_t d = a.list.rows.head_dim, rows = a.list.rows.num_rows;
  float2* const ranges = cuda.scratch<float2>(rows * cut.units * d);
  launch("channel_ranges", cuda, unit_blocks(a, cut, 0), channel_ranges<T>, a, cut, ranges);
  const int groups = cut.units / cut.per_group;
  launch("merge_ranges", cuda, blocks_of(ceil_div(rows * groups * d, 256), 256), merge_ranges, a, cut, ranges, groups);
  launch_units<T, false>(a, cut, ranges, cuda);
}

}  // namespace

void quantize_channels(CodecArgs a, ElementType type, CudaContext& cuda) {
  const UnitCut cut = cut_units(a);
  for_type(type, [&](auto zero) { quantize<decltype(zero)>(a, cut, cuda); });
}

}  // namespace kvlab
