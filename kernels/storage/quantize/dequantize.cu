#include "kernels/storage/quantize/lane_groups.cuh"

namespace kvlab {

namespace {

constexpr int kWarps = 4;
constexpr int kInFlight = 4;  // groups read before the first write

// The product is not fused with the sum.
__device__ __forceinline__ float combine(Quantize::Mode mode, float x, float decoded, float scale) {
  const float value = __fmul_rn(decoded, scale);  // exact for scale 1
  return mode == Quantize::Mode::kWrite ? value : mode == Quantize::Mode::kAdd ? x + value : x - value;
}

// kInFlight groups per lane.
struct Flight {
  unsigned long long codes[kInFlight];
  std::uint32_t header[kInFlight];
  std::int64_t at[kInFlight];  // pool place of the 8 numbers; -1: none
  int channel[kInFlight];

  // `left`: groups per lane before the end of the tile.
  __device__ __forceinline__ void load(const CodecArgs& a, const LaneTile& tile, int bits, int left, TileWalk& walk) {
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const std::int64_t from = tile.slot(walk.token);
      channel[u] = tile.channel(a, walk);
      at[u] = u < left && walk.token < tile.n && from >= 0 ? from * a.list.rows.head_dim + channel[u] : -1;
      const std::uint8_t* const p = tile.packed + tile.bytes_before(walk);
      if (at[u] >= 0) {
        header[u] = static_cast<std::uint32_t>(get_bytes(p, a.header, a.align));
        codes[u] = get_bytes(p + a.header + tile.part * bits, bits, a.align);
      }
      walk.next();
    }
  }
};

// The reverse of quantize_tokens.
template <class T, int Bits, bool Symmetric>
__global__ void __launch_bounds__(kWarps* kWarpSize) dequantize_tokens(CodecArgs a, int groups_per_token, Quantize::Mode mode) {
  const WarpEntries mine(a, kWarps);
  if (mine.n <= 0) return;
  const LaneTile tile(a, mine, groups_per_token);
  const int bits = Bits != 0 ? Bits : a.bits, per_lane = a.list.rows.head_dim / 8;
  T* const data = static_cast<T*>(a.list.data);
  const float top = top_code<Symmetric>(bits);
  const std::uint32_t mask = (1U << bits) - 1;
  TileWalk walk(tile.lanes, groups_per_token);
  for (int step = 0; step < per_lane && step * (kWarpSize / tile.lanes) < tile.n * groups_per_token; step += kInFlight) {
    Flight groups;
    groups.load(a, tile, bits, per_lane - step, walk);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (groups.at[u] < 0) continue;
      const GroupScale s = scale_of_header<Symmetric>(groups.header[u], top);
      float x[8], scale[8];
      if (mode != Quantize::Mode::kWrite) load8(data + groups.at[u], x);
      if (tile.scales != nullptr) load8(tile.scales + groups.channel[u], scale);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float decoded = decode(s, static_cast<std::uint32_t>(groups.codes[u] >> bits * i) & mask);
        x[i] = combine(mode, x[i], decoded, tile.scales != nullptr ? scale[i] : 1.0F);
      }
      store8(data + groups.at[u], x);
    }
  }
}

// One warp per group of any shape.
template <class T, bool Symmetric>
__global__ void __launch_bounds__(kWarps* kWarpSize, 8) dequantize_any(CodecArgs a, int per_line, Quantize::Mode mode) {
  const int row = blockIdx.x / a.tiles, bits = a.bits;
  const AnyGroup group(a, row, std::int64_t{blockIdx.x % a.tiles} * kWarps + warp_index(), per_line);
  if (group.n == 0) return;
  const std::uint8_t* const packed = a.packed + a.base[row] + group.at;
  T* const data = static_cast<T*>(a.list.data);
  const float *const scales = a.scales(row), top = top_code<Symmetric>(bits);
  const GroupScale s = scale_of_header<Symmetric>(static_cast<std::uint32_t>(get_bytes(packed, a.header, 1)), top);
  for (int i = lane_index(); i < group.n; i += kWarpSize) {
    const std::int64_t place = group.place(a, row, i), bit = std::int64_t{i} * bits;
    if (place < 0) continue;
    const std::uint8_t* const p = packed + a.header + bit / 8;
    std::uint32_t word = p[0];
    if (bit % 8 + bits > 8) word |= static_cast<std::uint32_t>(p[1]) << 8;
    const float decoded = decode(s, word >> bit % 8 & ((1U << bits) - 1)), x = to_float(data[place]);
    data[place] = from_float<T>(combine(mode, x, decoded, scales != nullptr ? scales[group.channel(i)] : 1.0F));
  }
}

}  // namespace

void dequantize_groups(const CodecArgs& given, Quantize::Mode mode, ElementType type, CudaContext& cuda) {
  CodecArgs a = given;
  for_type(type, [&](auto zero) {
    using T = decltype(zero);
    if (!fits_lanes(a)) {
      const auto [blocks, per_line] = any_groups(a, kWarps);
      return launch("dequantize_any", cuda, blocks, a.symmetric ? dequantize_any<T, true> : dequantize_any<T, false>, a, per_line, mode);
    }
    a.tiles = static_cast<int>(ceil_div(a.list.longest, kWarps * kWarpSize));
    const LaunchShape blocks = blocks_of(std::int64_t{a.list.rows.num_rows} * a.tiles, kWarps * kWarpSize);
    for_code<sizeof(T) == 2>(a, [&](auto bits, auto symmetric) {
      launch("dequantize_tokens", cuda, blocks, dequantize_tokens<T, decltype(bits)::value, decltype(symmetric)::value>, a,
             a.list.rows.head_dim / a.group, mode);
    });
  });
}

}  // namespace kvlab
