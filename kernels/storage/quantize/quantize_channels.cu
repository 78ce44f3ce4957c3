#include "kernels/storage/quantize/group_codec.cuh"

// Groups along tokens in units of up to 32 tokens. A block takes kUnits units by up to 2 * kPairs channels, a thread two channels.
namespace kvlab {

constexpr int kUnitTokens = 32, kUnits = 4, kPairs = 64;

// `per_group` units in each group of `group` tokens (0: the whole list).
struct UnitCut {
  std::int32_t group = 0, per_group = 1, chunks = 1, pairs = kPairs;
  std::int32_t units = 1;  // of the longest list, a multiple of kUnits
};

inline UnitCut cut_units(CodecArgs& a) {
  const std::int32_t d = a.list.rows.head_dim, longest = a.list.longest;
  UnitCut cut;
  cut.group = a.group;
  const std::int32_t size = a.group > 0 && a.group < longest ? a.group : longest;
  cut.per_group = static_cast<std::int32_t>(ceil_div(size, kUnitTokens));
  if (cut.per_group == 3) cut.per_group = 4;  // groups of up to 128 tokens fit a block
  const std::int64_t groups = ceil_div(longest, size);
  cut.units = static_cast<std::int32_t>(ceil_div(groups * cut.per_group, kUnits) * kUnits);
  cut.chunks = static_cast<std::int32_t>(ceil_div(d, 2 * kPairs));
  cut.pairs = d / 2 < kPairs ? d / 2 : kPairs;
  a.tiles = cut.units / kUnits * cut.chunks;
  return cut;
}
inline bool in_one_block(const UnitCut& cut) { return cut.per_group <= kUnits; }

// `room`: shared memory for each group.
inline LaunchShape unit_blocks(const CodecArgs& a, const UnitCut& cut, std::int64_t room) {
  return blocks_of(std::int64_t{a.list.rows.num_rows} * a.tiles, cut.pairs * kUnits, room > 0 ? room * (kUnits / cut.per_group) : 0);
}

struct Unit {
  std::int64_t begin = 0;          // first token's entry
  std::int32_t tokens = 0;         // 0 to 32
  std::int32_t group = 0, of = 0;  // numbers of the group, of the unit in it
  std::int64_t group_at = 0;       // bytes from the row's begin
  std::int64_t channel_bytes = 0;  // per channel of the group
};

__device__ __forceinline__ Unit unit_at(const CodecArgs& a, const UnitCut& cut, int row, int number) {
  Unit u;
  const std::int32_t entries = a.list.entries(row), size = cut.group == 0 || cut.group > entries ? entries : cut.group;
  u.group = number / cut.per_group, u.of = number % cut.per_group;
  const std::int64_t first = std::int64_t{u.group} * size, left = entries - first;
  const std::int64_t n = left < size ? (left > 0 ? left : 0) : size;
  u.begin = first + u.of * kUnitTokens;
  const std::int64_t tokens = n - u.of * kUnitTokens;
  u.tokens = static_cast<std::int32_t>(tokens < 0 ? 0 : tokens < kUnitTokens ? tokens : kUnitTokens);
  u.group_at = u.group * a.group_bytes(size) * a.list.rows.head_dim;
  u.channel_bytes = a.group_bytes(n);
  return u;
}

struct UnitThread {
  int row, chunk, number, slice, channel;  // slice: of the block's units; channel: the first of two
  bool active;
  __device__ __forceinline__ UnitThread(const CodecArgs& a, const UnitCut& cut) {
    const int in_row = blockIdx.x % a.tiles, pair = threadIdx.x % cut.pairs;
    row = blockIdx.x / a.tiles, chunk = in_row % cut.chunks, slice = threadIdx.x / cut.pairs;
    number = in_row / cut.chunks * kUnits + slice;
    channel = chunk * 2 * kPairs + 2 * pair;
    active = channel < a.list.rows.head_dim;
  }
};

// slots [kUnits * 32] of the block's tokens, -1: none. All threads call it; a barrier must follow.
__device__ __forceinline__ void look_up(const CodecArgs& a, const UnitCut& cut, const UnitThread& me, std::int32_t* slots) {
  const int first = me.number - me.slice;
  for (int t = threadIdx.x; t < kUnits * kUnitTokens; t += blockDim.x) {
    const Unit u = unit_at(a, cut, me.row, first + t / kUnitTokens);
    const int i = t % kUnitTokens;
    slots[t] = i < u.tokens ? static_cast<std::int32_t>(a.list.slot(me.row, static_cast<std::int32_t>(u.begin + i))) : -1;
  }
}

// As in memory.
template <class T>
struct PairOf {
  std::uint32_t bits;
  __device__ __forceinline__ static PairOf nan() { return {0xFFFFFFFFU}; }
  __device__ __forceinline__ static PairOf of(float x, float y) { return {pack<T>(x, y)}; }
  __device__ __forceinline__ float2 value() const { return unpack<T>(bits); }
  // With one NaN, the number.
  __device__ __forceinline__ PairOf least(PairOf other) const { return {min2<T>(bits, other.bits)}; }
  __device__ __forceinline__ PairOf most(PairOf other) const { return {max2<T>(bits, other.bits)}; }
};
template <>
struct PairOf<float> {
  float2 x;
  __device__ __forceinline__ static PairOf nan() { return {make_float2(NAN, NAN)}; }
  __device__ __forceinline__ static PairOf of(float a, float b) { return {make_float2(a, b)}; }
  __device__ __forceinline__ float2 value() const { return x; }
  __device__ __forceinline__ PairOf least(PairOf other) const { return {make_float2(fminf(x.x, other.x.x), fminf(x.y, other.x.y))}; }
  __device__ __forceinline__ PairOf most(PairOf other) const { return {make_float2(fmaxf(x.x, other.x.x), fmaxf(x.y, other.x.y))}; }
};

// Aligned to 16 bytes as in packed.
struct Staged {
  std::uint8_t *shared, *global;
  int bytes;
};
inline std::int64_t segment_room(const CodecArgs& a, const UnitCut& cut) {
  const std::int64_t tokens = std::int64_t{cut.per_group} * kUnitTokens;
  return (2 * cut.pairs * a.group_bytes(tokens) + 31) / 16 * 16;
}
__device__ __forceinline__ Staged segment(const CodecArgs& a, const UnitCut& cut, const UnitThread& me, int slice, std::uint8_t* stage,
                                          int room) {
  const Unit u = unit_at(a, cut, me.row, me.number - me.slice + slice);
  const int channels = min(2 * cut.pairs, a.list.rows.head_dim - me.chunk * 2 * kPairs);
  std::uint8_t* const global = a.packed + a.base[me.row] + u.group_at + me.chunk * 2 * kPairs * u.channel_bytes;
  return {stage + slice / cut.per_group * room + reinterpret_cast<std::uintptr_t>(global) % 16, global,
          u.tokens > 0 ? static_cast<int>(channels * u.channel_bytes) : 0};
}

// By all threads of the block.
template <bool kToShared>
__device__ __forceinline__ void move_segment(const Staged& s) {
  std::uint8_t *const to = kToShared ? s.shared : s.global, *const from = kToShared ? s.global : s.shared;
  const int head = min(s.bytes, static_cast<int>((16 - reinterpret_cast<std::uintptr_t>(s.global) % 16) % 16));
  const int vectors = (s.bytes - head) / 16, tail = head + vectors * 16;
  for (int i = threadIdx.x; i < vectors; i += blockDim.x)
    *reinterpret_cast<uint4*>(to + head + i * 16) = *reinterpret_cast<const uint4*>(from + head + i * 16);
  for (int i = threadIdx.x; i < head; i += blockDim.x) to[i] = from[i];
  for (int i = tail + threadIdx.x; i < s.bytes; i += blockDim.x) to[i] = from[i];
}

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

// At two neighbouring numbers in the pool.
template <class T>
__device__ __forceinline__ void put_pair(PairOf<T>* at, float2 v, Quantize::Mode mode) {
  if (mode != Quantize::Mode::kWrite) {
    const float2 old = at->value();
    const float sign = mode == Quantize::Mode::kAdd ? 1.0F : -1.0F;
    v.x = old.x + sign * v.x, v.y = old.y + sign * v.y;
  }
  *at = PairOf<T>::of(v.x, v.y);
}

// kStaged: groups are within a block, their bytes in shared memory.
template <class T, int Bits, bool Symmetric, bool kStaged>
__global__ void __launch_bounds__(kPairs* kUnits) dequantize_units(CodecArgs a, UnitCut cut, int room, Quantize::Mode mode) {
  KVLAB_SHARED(std::int32_t, slots, kUnits * kUnitTokens);
  KVLAB_DYNAMIC_SHARED(std::uint8_t, stage);
  const UnitThread me(a, cut);
  const Unit unit = unit_at(a, cut, me.row, me.number);
  const int bits = Bits != 0 ? Bits : a.bits;
  look_up(a, cut, me, slots);
  if constexpr (kStaged)
    for (int slice = 0; slice < kUnits; slice += cut.per_group) move_segment<true>(segment(a, cut, me, slice, stage, room));
  __syncthreads();
  if (!me.active || unit.tokens == 0) return;
  const float top = top_code<Symmetric>(bits);
  const std::uint8_t* low =
      kStaged ? segment(a, cut, me, me.slice, stage, room).shared + (me.channel - me.chunk * 2 * kPairs) * unit.channel_bytes
              : a.packed + a.base[me.row] + unit.group_at + me.channel * unit.channel_bytes;
  const std::uint8_t* high = low + unit.channel_bytes;
  const int align =
      common_alignment(reinterpret_cast<std::uintptr_t>(low) | static_cast<std::uint64_t>(unit.channel_bytes | a.header | bits));
  const auto scale = [&](const std::uint8_t* p) {
    return scale_of_header<Symmetric>(static_cast<std::uint32_t>(get_bytes(p, a.header, align >= 2 ? 2 : 1)), top);
  };
  const GroupScale first = scale(low), second = scale(high);
  low += a.header + unit.of * (kUnitTokens / 8) * bits, high += a.header + unit.of * (kUnitTokens / 8) * bits;
  T* const data = static_cast<T*>(a.list.data) + me.channel;
  const std::int32_t* const mine = slots + me.slice * kUnitTokens;
  const std::uint32_t mask = (1U << bits) - 1;
#pragma unroll
  for (int j = 0; j < kUnitTokens / 8; ++j) {
    const int room_for = min(8, unit.tokens - 8 * j);
    if (room_for <= 0) break;
    const int bytes = room_for == 8 ? bits : (room_for * bits + 7) / 8, step = room_for == 8 ? align : 1;
    const unsigned long long x = get_bytes(low + j * bits, bytes, step), y = get_bytes(high + j * bits, bytes, step);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::int32_t slot = mine[8 * j + i];
      if (slot < 0) continue;
      auto* const at = reinterpret_cast<PairOf<T>*>(data + std::int64_t{slot} * a.list.rows.head_dim);
      put_pair(at,
               make_float2(decode(first, static_cast<std::uint32_t>(x >> bits * i) & mask),
                           decode(second, static_cast<std::uint32_t>(y >> bits * i) & mask)),
               mode);
    }
  }
}

}  // namespace

void quantize_channels(CodecArgs a, ElementType type, CudaContext& cuda) {
  const UnitCut cut = cut_units(a);
  for_type(type, [&](auto zero) { quantize<decltype(zero)>(a, cut, cuda); });
}

void dequantize_channels(CodecArgs a, Quantize::Mode mode, ElementType type, CudaContext& cuda) {
  const UnitCut cut = cut_units(a);
  for_type(type, [&](auto zero) {
    using T = decltype(zero);
    for_value<false, true>(in_one_block(cut), [&](auto staged) {
      constexpr bool kStaged = decltype(staged)::value;
      const std::int64_t room = kStaged ? segment_room(a, cut) : 0;
      for_code<sizeof(T) == 2 && kStaged>(a, [&](auto bits, auto symmetric) {
        launch("dequantize_units", cuda, unit_blocks(a, cut, room),
               dequantize_units<T, decltype(bits)::value, decltype(symmetric)::value, kStaged>, a, cut, static_cast<int>(room), mode);
      });
    });
  });
}

}  // namespace kvlab
