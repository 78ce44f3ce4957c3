#include "kernels/storage/quantize/lane_groups.cuh"

namespace kvlab {

namespace {

constexpr int kWarps = 4;
constexpr int kInFlight = 4;  // vectors of 8 numbers that a lane loads before it encodes the first

// Groups of neighbouring channels, whose size is 8 times a power of two up to 32 and divides head_dim. A warp takes 32 tokens: their
// places are looked up once, by one lane each. The lanes of a group that are there anyway share the work of choosing steps.
template <class T, int Bits, bool Symmetric>
__global__ void __launch_bounds__(kWarps* kWarpSize) quantize_tokens(CodecArgs a, int groups_per_token, int align) {
  const int row = blockIdx.x / a.tiles, bits = Bits != 0 ? Bits : a.bits, d = a.list.rows.head_dim;
  const int entries = a.list.entries(row), begin = (blockIdx.x % a.tiles * kWarps + warp_index()) * kWarpSize;
  if (begin >= entries) return;
  const int n = min(kWarpSize, entries - begin), lanes = a.group / 8, part = lane_index() % lanes;
  const std::int64_t slot = lane_index() < n ? a.list.slot(row, begin + lane_index()) : -1;
  const int group_bytes = static_cast<int>(a.group_bytes(a.group)), token_bytes = group_bytes * groups_per_token;
  std::uint8_t* const packed = a.packed + a.base[row] + static_cast<std::int64_t>(begin) * token_bytes;
  const T* const data = static_cast<const T*>(a.list.data);
  const float *const scales = a.scales(row), top = top_code<Symmetric>(bits);
  TileWalk walk(lanes, groups_per_token);
  for (int step = 0; step < d / 8 && step * (kWarpSize / lanes) < n * groups_per_token; step += kInFlight) {
    float x[kInFlight][8];
    int at[kInFlight];  // where the group's bytes begin; -1: not a group of this tile
    GroupRange range[kInFlight];
    std::uint32_t present = 0;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const bool mine = step + u < d / 8 && walk.token < n;
      const std::int64_t from = __shfl_sync(kAllLanes, slot, walk.token & 31);
      at[u] = mine ? walk.token * token_bytes + walk.part * group_bytes : -1;
      if (mine && from >= 0) {
        load8(data + from * d + walk.part * a.group + part * 8, x[u]);
        if (scales != nullptr) {
          float divisor[8];
          load8(scales + walk.part * a.group + part * 8, divisor);
#pragma unroll
          for (int i = 0; i < 8; ++i) x[u][i] /= divisor[i];
        }
        present |= 1U << u;
      }
      walk.next();
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if ((present >> u & 1U) == 0) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) range[u].take(x[u][i]);
    }
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        range[u].least = fminf(range[u].least, __shfl_xor_sync(kAllLanes, range[u].least, offset));
        range[u].most = fmaxf(range[u].most, __shfl_xor_sync(kAllLanes, range[u].most, offset));
      }
    }
    GroupStep shared_step{};
    if (lanes >= kInFlight) {
      static_assert(kInFlight == 4);
      const bool odd = part % 2 != 0, upper = part % 4 >= 2;
      GroupRange mine;
      mine.least = upper ? (odd ? range[3].least : range[2].least) : (odd ? range[1].least : range[0].least);
      mine.most = upper ? (odd ? range[3].most : range[2].most) : (odd ? range[1].most : range[0].most);
      shared_step = choose_step<Symmetric>(mine, bits);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      GroupStep s;
      if (lanes >= kInFlight) {
        const int source = lane_index() - part + u;
        s.header = __shfl_sync(kAllLanes, shared_step.header, source);
        s.inverse = __shfl_sync(kAllLanes, shared_step.inverse, source);
        s.zero = Symmetric ? 0.0F : half_value(s.header);
      } else {
        s = choose_step<Symmetric>(range[u], bits);
      }
      if (at[u] < 0) continue;
      unsigned long long codes = 0;
      if ((present >> u & 1U) != 0) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if constexpr (Bits != 0 && Bits <= 4)
            codes |= encode<Symmetric>(s, top, x[u][i]) << Bits * i;
          else
            codes |= static_cast<unsigned long long>(encode<Symmetric>(s, top, x[u][i])) << bits * i;
        }
      } else {
        s.header = 0;
      }
      if (part == 0) put_bytes(packed + at[u], s.header, a.header, align);
      put_bytes(packed + at[u] + a.header + part * bits, codes, bits, align);
    }
  }
}

// One warp per group of any shape.
template <class T, bool Symmetric>
__global__ void __launch_bounds__(kWarps* kWarpSize, 8) quantize_any(CodecArgs a, bool across, int per_line) {
  const int row = blockIdx.x / a.tiles, bits = a.bits;
  const AnyGroup group(a, row, std::int64_t{blockIdx.x % a.tiles} * kWarps + warp_index(), across, per_line);
  if (group.n == 0) return;
  const T* const data = static_cast<const T*>(a.list.data);
  const float *const scales = a.scales(row), top = top_code<Symmetric>(bits);
  const auto load = [&](int i, bool& present) {
    const std::int64_t place = group.place(a, row, i);
    present = place >= 0;
    const float x = present ? to_float(data[place]) : 0.0F;
    return scales != nullptr ? x / scales[group.channel(i)] : x;
  };
  GroupRange range;
  int found = 0;
  for (int i = lane_index(); i < group.n; i += kWarpSize) {
    bool present;
    const float x = load(i, present);
    if (present) range.take(x), ++found;
  }
  range.least = warp_min(range.least), range.most = warp_max(range.most), found = warp_sum(found);
  GroupStep s = choose_step<Symmetric>(range, bits);
  if (found == 0) s.header = 0;
  std::uint8_t* const packed = a.packed + a.base[row] + group.at;
  if (lane_index() == 0) put_bytes(packed, s.header, a.header, 1);
  for (int i = lane_index() * 8; i < group.n; i += kWarpSize * 8) {
    const int n = min(8, group.n - i);
    unsigned long long codes = 0;
    for (int j = 0; j < n; ++j) {
      bool present;
      const float x = load(i + j, present);
      if (present) codes |= static_cast<unsigned long long>(encode<Symmetric>(s, top, x)) << bits * j;
    }
    put_bytes(packed + a.header + i / 8 * bits, codes, (n * bits + 7) / 8, 1);
  }
}

template <class T, bool Symmetric>
void launch_tokens(const CodecArgs& a, int align, CudaContext& cuda) {
  const LaunchShape blocks{dim3(static_cast<unsigned>(std::int64_t{a.list.rows.num_rows} * a.tiles)), dim3(kWarps * kWarpSize)};
  for_bits<sizeof(T) == 2>(a.bits, [&](auto bits) {
    launch("quantize_tokens", cuda, blocks, quantize_tokens<T, decltype(bits)::value, Symmetric>, a, a.list.rows.head_dim / a.group, align);
  });
}

template <class T, bool Symmetric>
void launch_any(CodecArgs a, bool across, CudaContext& cuda) {
  const auto [blocks, per_line] = any_groups(a, across, kWarps);
  launch("quantize_any", cuda, blocks, quantize_any<T, Symmetric>, a, across, per_line);
}

}  // namespace

void run_cuda(const Quantize& op, CudaContext& cuda) {
  if (op.tokens.total() == 0 || op.tokens.kv.head_dim == 0) return;
  const CudaContext::Frame frame(cuda);
  CodecArgs a = codec_args(op, cuda);
  const int d = op.tokens.kv.head_dim;
  if (op.codec.axis == GroupCodec::Axis::kChannel && d % 2 == 0 && op.scale_row == nullptr)
    return quantize_channels(a, op.tokens.kv.type, cuda);
  const bool across = op.codec.axis == GroupCodec::Axis::kToken, symmetric = op.codec.symmetric;
  const int align = codec_alignment(op);
  for_type(op.tokens.kv.type, [&](auto zero) {
    using T = decltype(zero);
    if (!across || !fits_lanes(a)) return symmetric ? launch_any<T, true>(a, across, cuda) : launch_any<T, false>(a, across, cuda);
    a.tiles = static_cast<int>(ceil_div(a.list.longest, kWarps * kWarpSize));
    return symmetric ? launch_tokens<T, true>(a, align, cuda) : launch_tokens<T, false>(a, align, cuda);
  });
}

}  // namespace kvlab
