#pragma once

#include "kernels/device/cuda/launch.cuh"
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

}  // namespace kvlab
