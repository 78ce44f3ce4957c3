#include "kernels/storage/quantize/channel_units.cuh"

namespace kvlab {

namespace {

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
